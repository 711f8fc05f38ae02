"""usage: nixl_agent.py WHEEL: two agents of NIXL's wheel with the back end FERRY; one writes into the other's memory."""
import importlib
import sys
import time

import numpy

api = importlib.import_module(sys.argv[1].replace("-", "_") + "._api")
SIZE = 1 << 20
agents, memories = [], []
for name in ("writer", "reader"):
    agent = api.nixl_agent(name, api.nixl_agent_config(backends=["FERRY"]))
    memory = numpy.full(SIZE, len(agents), dtype=numpy.uint8)
    agent.register_memory(agent.get_reg_descs([(memory.ctypes.data, SIZE, 0, "")], "DRAM"))
    agents.append(agent)
    memories.append(memory)
writer, reader = agents
peer = writer.add_remote_agent(reader.get_agent_metadata()).decode()
own, other = (writer.get_xfer_descs([(memory.ctypes.data, SIZE, 0)], "DRAM") for memory in memories)
handle = writer.initialize_xfer("WRITE", own, other, peer, b"written")
state = writer.transfer(handle)
end = time.monotonic() + 30
while state == "PROC" and time.monotonic() < end:
    state = writer.check_xfer_state(handle)
assert state == "DONE", state
assert not memories[1].any(), "the bytes have not arrived"
while not reader.get_new_notifs() and time.monotonic() < end:
    pass
assert time.monotonic() < end, "the notification has not arrived"
print(f"{sys.argv[1]}: {SIZE} bytes written by the back end FERRY")
