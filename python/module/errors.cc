// Maps library error codes to the exceptions of tensorferry.errors.

#include "python/module/errors.h"

#include <string>

namespace ferry::python {
namespace {

namespace nb = nanobind;

// On a thread that holds the interpreter's lock.
void Translate(const std::exception_ptr& thrown, void* /*payload*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Raised& raised) {
    const Error& error = raised.error();
    const nb::object by_code = nb::module_::import_("tensorferry.errors").attr("BY_CODE");
    const nb::object type = by_code[CodeName(error.code())];
    PyErr_SetObject(type.ptr(), nb::str(error.message().c_str()).ptr());
  }
}

}  // namespace

void BindErrors(nb::module_& /*module*/) { nb::register_exception_translator(Translate); }

}  // namespace ferry::python
