// Reads Python numbers in place. Errors are Python exceptions that name the sequence and the
// value.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>

namespace ferry::python {

// A list or tuple, or a list made of what else can be iterated. What runs Python may change a list,
// so sizes are looked at anew for each item.
class Items {
 public:
  // `what` of which sequence, -1 for those of all: "tokens".
  Items(nanobind::handle object, const char* what, Py_ssize_t row = -1);

#ifdef Py_LIMITED_API
  // The stable ABI has no macros that read the object.
  Py_ssize_t size() const noexcept {
    return PyList_Check(fast_.ptr()) != 0 ? PyList_Size(fast_.ptr()) : PyTuple_Size(fast_.ptr());
  }
#else
  Py_ssize_t size() const noexcept { return PySequence_Fast_GET_SIZE(fast_.ptr()); }
#endif
  // Borrowed.
  PyObject* At(Py_ssize_t index) const {
    if (index >= size()) RefuseChanged();
#ifdef Py_LIMITED_API
    return PyList_Check(fast_.ptr()) != 0 ? PyList_GetItem(fast_.ptr(), index)
                                          : PyTuple_GetItem(fast_.ptr(), index);
#else
    return PySequence_Fast_GET_ITEM(fast_.ptr(), index);
#endif
  }

 private:
  [[noreturn]] void RefuseChanged() const;

  nanobind::object fast_;
  const char* what_;
};

// Describes a number in errors: "the token of sequence 3".
struct NumberOf {
  const char* what;
  Py_ssize_t row;
};

// An int, or what has __index__ (NumPy's integers).
std::int64_t Int64Of(PyObject* item, NumberOf of);
std::int32_t Int32Of(PyObject* item, NumberOf of);
std::int32_t FitInt32(std::int64_t value, NumberOf of);
// A float, an int, or what has __float__.
float FloatOf(PyObject* item, NumberOf of);

}  // namespace ferry::python
