// Which file dlopen() would load, without loading it.
#pragma once
#include <optional>
#include <string>

// Which file dlopen() would load, found without loading it: no constructor runs.
namespace ferry::nccl_net {

// The path of the shared library that dlopen(name) opens when the object that has the code at
// `caller` calls it: an object that is loaded already, else the first match in the caller's RPATH
// or RUNPATH, in LD_LIBRARY_PATH, in the loader's cache and in the system's folders. Null: this
// library is the caller. A name with a slash is a path. Nothing where there is no such file, or it
// is for another kind of machine. Any thread.
std::optional<std::string> FindLibrary(const std::string& name, const void* caller);

// Whether `path` is the file that this code was loaded from, by whatever name.
bool IsThisLibrary(const std::string& path);

// The path that the loader's cache (ld.so.cache, the text of the file) has for a library. Nothing
// where it has none, or is no cache.
std::optional<std::string> FindInLoaderCache(const std::string& cache, const std::string& name);

}  // namespace ferry::nccl_net
