// Which file dlopen() would load, without loading it.
#pragma once
#include <optional>
#include <string>

// Finds the file that dlopen() would load without loading it, so that no constructor runs.
namespace ferry::nccl_net {

// The path of the shared library that dlopen(name) opens when called by the object that contains
// the code at `caller`: an object that is already loaded, else the first match in the caller's
// RPATH or RUNPATH, LD_LIBRARY_PATH, the loader's cache and the system's folders. Null `caller`:
// this library. A name with a slash is a path. Returns nothing where there is no such file, or it
// is for another kind of machine. Any thread.
std::optional<std::string> FindLibrary(const std::string& name, const void* caller);

// Whether `path`, under whatever name, is the file that this code was loaded from.
bool IsThisLibrary(const std::string& path);

// The path that the loader's cache (the contents of ld.so.cache) has for a library. Returns nothing
// where it has none, or `cache` is not a loader cache.
std::optional<std::string> FindInLoaderCache(const std::string& cache, const std::string& name);

}  // namespace ferry::nccl_net
