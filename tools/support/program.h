// The program's command line: what main() parses, and what its manual pages are made from.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace ferry::tools {

struct Invocation;

// Declares all of it but --version. Keeps the pointers until the program ends.
void DeclareProgram(CLI::App* app, Invocation* invocation);

}  // namespace ferry::tools
