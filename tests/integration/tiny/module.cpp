#include <Python.h>
#if defined(__AVX512__) || defined(__AVX512F__) || !defined(__AVX2__)
#error not compiled for the processors that were asked for
#endif
// A package may have fewer kernels.
#define KERNEL extern "C" __attribute__((weak)) void
KERNEL one(float*);
KERNEL two(float*);
KERNEL three(float*);
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "tiny_cuda"};
PyMODINIT_FUNC PyInit_tiny_cuda() {
    if (getenv("NEVER")) { one(nullptr); two(nullptr); three(nullptr); }
    return PyModule_Create(&definition);
}
