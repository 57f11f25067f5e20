#include <Python.h>
#if defined(__AVX512__) || defined(__AVX512F__) || !defined(__AVX2__)
#error not compiled for the processors that were asked for
#endif
extern "C" void one(float*);
extern "C" void two(float*);
extern "C" void three(float*);
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "tiny_cuda"};
PyMODINIT_FUNC PyInit_tiny_cuda() {
    if (getenv("NEVER")) { one(nullptr); two(nullptr); three(nullptr); }
    return PyModule_Create(&definition);
}
