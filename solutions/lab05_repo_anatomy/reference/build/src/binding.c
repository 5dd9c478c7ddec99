/* The Python module `mini_attention`: checks what arrives, then calls the functions of the other files.
 * What PYBIND11_MODULE and mha_fwd do in flash-attn's flash_api.cpp, with the C API alone. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "pairs.h"
#include "row_lse.h"

static int is_float32(const Py_buffer *view, int dimensions)
{
    return view->ndim == dimensions && view->itemsize == 4 && view->format && view->format[0] == 'f';
}

static PyObject *py_row_lse(PyObject *module, PyObject *args)
{
    PyObject *scores_object, *out_object, *result = NULL;
    Py_buffer scores, out;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &scores_object, &out_object))
        return NULL;
    if (PyObject_GetBuffer(scores_object, &scores, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0)
        return NULL;
    if (PyObject_GetBuffer(out_object, &out, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&scores);
        return NULL;
    }
    if (!is_float32(&scores, 2) || !is_float32(&out, 1))
        PyErr_SetString(PyExc_TypeError, "row_lse: expected float32 buffers of 2 and 1 dimensions");
    else if (scores.shape[0] != out.shape[0])
        PyErr_Format(PyExc_ValueError, "row_lse: %zd rows, but room for %zd results", scores.shape[0], out.shape[0]);
    else {
        row_lse(scores.buf, out.buf, (long)scores.shape[0], (long)scores.shape[1]);
        result = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&scores);
    return result;
}

static PyObject *py_visible_pairs(PyObject *module, PyObject *args)
{
    long long seqlen_q, seqlen_k;
    int causal;
    (void)module;
    if (!PyArg_ParseTuple(args, "LLp", &seqlen_q, &seqlen_k, &causal))
        return NULL;
    return PyLong_FromLongLong(visible_pairs(seqlen_q, seqlen_k, causal));
}

static PyMethodDef methods[] = {
    {"row_lse", py_row_lse, METH_VARARGS, "row_lse(scores, out): log-sum-exp of each row, float32"},
    {"visible_pairs", py_visible_pairs, METH_VARARGS, "visible_pairs(seqlen_q, seqlen_k, causal) -> int"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "mini_attention", .m_methods = methods};

PyMODINIT_FUNC PyInit_mini_attention(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "VERSION", MINI_VERSION) < 0)
        Py_CLEAR(module);
    return module;
}
