"""Files of deploy/ and .github/ that cannot be run here are well formed, and name what exists.

  deploy_test.py    exits with 77 where PyYAML is missing, after the rest was checked
"""
import json
import pathlib
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SKIPPED = 77
NEVER_RUN = "ever run on a cluster"  # "Never run", "was ever run"
# What an object of this kind has to have, as Kubernetes' API reference says.
REQUIRED = {
    ("v1", "Service"): ("metadata.name", "spec"),
    ("apps/v1", "Deployment"): ("metadata.name", "spec.selector.matchLabels", "spec.template.metadata.labels",
                                "spec.template.spec.containers"),
    ("batch/v1", "Job"): ("metadata.name", "spec.template.spec.containers", "spec.template.spec.restartPolicy"),
}
sys.dont_write_bytecode = True


def settings():
    """The variables of ferry/core/config_rows.cc."""
    text = (ROOT / "ferry/core/config_rows.cc").read_text(encoding="utf-8")
    return {"FERRY_" + name.upper() for name in re.findall(r'\.name = "(\w+)"', text)}


def metrics():
    loader = SourceFileLoader("make_reference", str(ROOT / "scripts/make_reference"))
    reference = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(reference)
    return {name: set(labels.split(", ")) - {""} for name, _, labels, _ in reference.metrics_of()}


def variable_faults():
    known = settings()
    for path in sorted(path for path in DEPLOY.rglob("*") if path.is_file()):
        text = path.read_text(encoding="utf-8")
        for name in sorted(set(re.findall(r"\bFERRY_[A-Z_]+\b", text)) - known):
            yield f"{path.relative_to(ROOT)}: there is no setting {name}"
        if path.suffix != ".json" and NEVER_RUN not in text:
            yield f"{path.relative_to(ROOT)}: does not say that it was never run on a cluster"


def dashboard_faults():
    path = DEPLOY / "grafana/tensorferry.json"
    dashboard, known = json.loads(path.read_text(encoding="utf-8")), metrics()
    shown = set()
    for panel in dashboard["panels"]:
        for key in ("id", "type", "title", "gridPos", "targets", "datasource"):
            if key not in panel:
                yield f"{path.name}: a panel without {key}: {panel.get('title')}"
        for target in panel["targets"]:
            names = re.findall(r"\bferry_\w+", target["expr"])
            shown |= set(names)
            labels = set().union(*(known.get(name, set()) for name in names)) | {"instance"}
            used = {label.strip() for found in re.findall(r"by \(([^)]*)\)", target["expr"])
                    for label in found.split(",")} | set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            for label in sorted(used - labels):
                yield f"{path.name}: \"{panel['title']}\": {', '.join(names)} has no label {label}"
    for name in sorted(shown - set(known)):
        yield f"{path.name}: there is no metric {name}"


def has(thing, path):
    for key in path.split("."):
        if not isinstance(thing, dict) or key not in thing:
            return False
        thing = thing[key]
    return True


def container_faults(where, pod):
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    for container in pod["containers"]:
        for key in ("name", "image"):
            if key not in container:
                yield f"{where}: a container without {key}"
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in volumes:
                yield f"{where}: there is no volume {mount['name']}"


def object_faults(where, thing):
    kind = (thing.get("apiVersion"), thing.get("kind"))
    if kind not in REQUIRED:
        yield f"{where}: {kind} is not a kind that this test knows"
        return
    yield from (f"{where}: {kind[1]} lacks {path}" for path in REQUIRED[kind] if not has(thing, path))
    if has(thing, "spec.template.spec.containers"):
        yield from container_faults(where, thing["spec"]["template"]["spec"])
    if kind[1] == "Deployment":
        wanted, got = thing["spec"]["selector"]["matchLabels"], thing["spec"]["template"]["metadata"]["labels"]
        if not wanted.items() <= got.items():
            yield f"{where}: the selector {wanted} does not select the template's {got}"


def yaml_faults(yaml):
    for path in sorted(DEPLOY.rglob("*.yaml")):
        for number, thing in enumerate(yaml.safe_load_all(path.read_text(encoding="utf-8")), 1):
            yield from object_faults(f"{path.relative_to(ROOT)}, object {number}", thing)
    for path in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "body" not in form:
            continue
        ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
        if len(ids) != len(set(ids)) or not {"name", "description"} <= form.keys():
            yield f"{path.name}: a form has a name, a description, and ids that differ"


def script_faults():
    for path in sorted(DEPLOY.rglob("*.sbatch")):
        done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False, timeout=30)
        if done.returncode:
            yield f"{path.relative_to(ROOT)}: {done.stderr.strip()}"
    docker = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    instructions = re.findall(r"^([A-Z]+) ", docker.replace("\\\n", " "), re.MULTILINE)
    if "FROM" not in instructions or set(instructions) - {"ARG", "FROM", "RUN", "ENV", "COPY", "CMD"}:
        yield f"Dockerfile: its instructions are {', '.join(instructions)}"


def main():
    faults = [*variable_faults(), *dashboard_faults(), *script_faults()]
    try:
        import yaml
    except ImportError:
        yaml = None
    if yaml:
        faults += yaml_faults(yaml)
    print("\n".join(faults), end="\n" if faults else "")
    if not yaml:
        print("skipped: the YAML files, because PyYAML is not installed (python3-yaml)")
    return 1 if faults else 0 if yaml else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
