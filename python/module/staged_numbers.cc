// Reads lists of Python integers straight into host memory.

#include "python/module/staged_numbers.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <string>

#include "python/module/errors.h"

namespace ferry::python {
namespace {

namespace nb = nanobind;

// In place of the TypeError that is set, which knows no sequence. Others are let through.
[[noreturn]] void RefuseType(nb::handle object, const std::string& what, const char* needed) {
  nb::python_error error;
  if (!error.matches(PyExc_TypeError)) throw error;
  throw nb::type_error(fmt::format("DecodeInputs: {} is {} ({}); give {}", what,
                                   nb::repr(object).c_str(), nb::type_name(object.type()).c_str(),
                                   needed)
                           .c_str());
}

std::string Said(NumberOf of) { return fmt::format("the {} of sequence {}", of.what, of.row); }

[[noreturn]] void RefuseRange(const std::string& value, NumberOf of, const char* type) {
  throw Raised(Error(Code::kInvalidArgument,
                     fmt::format("DecodeInputs: {} is {}, which {} cannot hold; give one that fits",
                                 Said(of), value, type)));
}

std::int64_t OfExact(PyObject* item, NumberOf of) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(item, &overflow);
  if (overflow != 0) RefuseRange(nb::repr(item).c_str(), of, "int64");
  return value;
}

}  // namespace

Items::Items(nb::handle object, const char* what, Py_ssize_t row) : what_(what) {
  // Its list may let go of it while its own code runs.
  const nb::object held = nb::borrow(object);
  // A list or tuple is returned as it is, not copied; its items are borrowed.
  fast_ = nb::steal(PySequence_Fast(held.ptr(), ""));
  if (fast_.is_valid()) return;
  RefuseType(held, row < 0 ? std::string(what) : Said({what, row}), "a list");
}

void Items::RefuseChanged() const {
  throw Raised(Error(Code::kInvalidArgument,
                     fmt::format("DecodeInputs: {} became shorter, {}, while they were read; leave "
                                 "lists as they are until stage() returns",
                                 what_, size())));
}

std::int64_t Int64Of(PyObject* item, NumberOf of) {
  // Exact ints run no code of Python's, so the list cannot change meanwhile.
  if (PyLong_CheckExact(item)) return OfExact(item, of);
  // Its list may let go of it meanwhile.
  const nb::object held = nb::borrow(item);
  const nb::object index = nb::steal(PyNumber_Index(item));
  if (!index.is_valid()) RefuseType(held, Said(of), "an int");
  return OfExact(index.ptr(), of);
}

std::int32_t FitInt32(std::int64_t value, NumberOf of) {
  const auto fitted = static_cast<std::int32_t>(value);
  if (fitted != value) RefuseRange(fmt::format("{}", value), of, "int32");
  return fitted;
}

std::int32_t Int32Of(PyObject* item, NumberOf of) { return FitInt32(Int64Of(item, of), of); }

float FloatOf(PyObject* item, NumberOf of) {
  double value = 0;
  if (PyFloat_CheckExact(item)) {
    value = PyFloat_AsDouble(item);  // cannot fail
  } else {
    const nb::object held = nb::borrow(item);
    value = PyFloat_AsDouble(item);
    // CPython's way to report an error; -1.0 may also be the value.
    if (value == -1.0 && PyErr_Occurred() != nullptr) RefuseType(held, Said(of), "a float");
  }
  // Infinity and NaN exist in float32, too, and pass.
  if (std::isfinite(value) && std::abs(value) > std::numeric_limits<float>::max()) {
    RefuseRange(fmt::format("{}", value), of, "float32");
  }
  return static_cast<float>(value);
}

}  // namespace ferry::python
