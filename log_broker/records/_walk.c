/*
 * The walks over the records of a batch, compiled: `is_sound` is what `readable.check_readable` asks, `passes` what
 * `contracts.all_pass` asks, with `AvroSkip` for the Skip of an Avro schema, and `spans` what `record.spans_of` yields.
 * Each says yes only where the Python does that it stands for; whatever it says no to is looked at there again, and
 * explained. Nothing outside of the section is read, whatever its bytes are.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { INT_BYTES_MAX = 5, LONG_BYTES_MAX = 10, HEADERS_MAX = 100000, FRAME_BYTES = 5 };
enum { DEPTH_MAX = 100 }; /* of nested data, far below what Python walks over */

typedef struct {
    const uint8_t *data;
    Py_ssize_t at, end;
} Cursor;

/* An unsigned varint of so many bytes at most, and of 64 bits. */
static int take_varint(Cursor *cursor, int bytes_max, uint64_t *number)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 7 * bytes_max; shift += 7) {
        if (cursor->at >= cursor->end)
            return 0;
        uint8_t byte = cursor->data[cursor->at++];
        if (shift == 63 && byte > 1)
            return 0;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *number = value;
            return 1;
        }
    }
    return 0;
}

static int take_number(Cursor *cursor, uint64_t *number)
{
    return take_varint(cursor, INT_BYTES_MAX, number);
}

/* A zig-zag number of 64 bits. */
static int take_long(Cursor *cursor, int64_t *number)
{
    uint64_t value;
    if (!take_varint(cursor, LONG_BYTES_MAX, &value))
        return 0;
    *number = (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
    return 1;
}

static int pass_number(Cursor *cursor, int bytes_max)
{
    while (bytes_max-- > 0 && cursor->at < cursor->end)
        if (cursor->data[cursor->at++] < 0x80)
            return 1;
    return 0;
}

static int pass_byte(Cursor *cursor)
{
    return cursor->at++ < cursor->end;
}

/* A length, zig-zag, and so many bytes; -1 is null. */
static int take_bytes(Cursor *cursor, Py_ssize_t *start, Py_ssize_t *length)
{
    uint64_t number;
    if (!take_number(cursor, &number))
        return 0;
    *start = cursor->at;
    *length = -1;
    if (number & 1)
        return number == 1;
    if (number >> 1 > (uint64_t)(cursor->end - cursor->at))
        return 0;
    *length = (Py_ssize_t)(number >> 1);
    cursor->at += *length;
    return 1;
}

/* The record that begins at the cursor. */
static int take_record(Cursor *cursor, Cursor *record)
{
    uint64_t number;
    if (!take_number(cursor, &number) || number & 1 || number >> 1 > (uint64_t)(cursor->end - cursor->at))
        return 0;
    record->data = cursor->data;
    record->at = cursor->at;
    cursor->at += (Py_ssize_t)(number >> 1);
    record->end = cursor->at;
    return 1;
}

static int pass_headers(Cursor *record, Py_ssize_t *headers_left)
{
    uint64_t count;
    Py_ssize_t start, length;
    if (!take_number(record, &count) || count & 1 || count >> 1 > HEADERS_MAX)
        return 0;
    count >>= 1;
    if ((uint64_t)*headers_left < count)
        return 0;
    *headers_left -= (Py_ssize_t)count;
    for (; count > 0; count--)
        if (!take_bytes(record, &start, &length) || length < 0 || !take_bytes(record, &start, &length))
            return 0;
    return 1;
}

static int is_sound_record(Cursor *record, uint64_t index, Py_ssize_t *headers_left)
{
    uint64_t delta;
    Py_ssize_t start, length;
    return pass_byte(record) /* attributes, unused */
        && pass_number(record, LONG_BYTES_MAX)
        && take_number(record, &delta) && delta == 2 * index
        && take_bytes(record, &start, &length)
        && take_bytes(record, &start, &length)
        && pass_headers(record, headers_left)
        && record->at == record->end;
}

static PyObject *is_sound(PyObject *module, PyObject *arguments)
{
    const char *data;
    Py_ssize_t size, count, headers_left;
    if (!PyArg_ParseTuple(arguments, "y#nn:is_sound", &data, &size, &count, &headers_left))
        return NULL;
    Cursor section = {(const uint8_t *)data, 0, size}, record;
    int sound = headers_left >= 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t index = 0; sound && index < count; index++)
        sound = take_record(&section, &record) && is_sound_record(&record, (uint64_t)index, &headers_left);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(sound && section.at == size);
}

/* The span of a record, as `record.spans_of` has it; NULL without a Python error where the record is not as it must be. */
static PyObject *span_of(Cursor *record)
{
    int64_t time, values[7];
    uint64_t delta;
    Py_ssize_t key, key_length, value, value_length;
    if (!pass_byte(record) || !take_long(record, &time) || !take_number(record, &delta)
        || !take_bytes(record, &key, &key_length) || !take_bytes(record, &value, &value_length))
        return NULL;
    values[0] = time;
    values[1] = (int64_t)(delta >> 1) ^ -(int64_t)(delta & 1);
    values[2] = key;
    values[3] = key_length;
    values[4] = value;
    values[5] = value_length;
    values[6] = record->end;
    PyObject *span = PyTuple_New(7);
    for (Py_ssize_t at = 0; span != NULL && at < 7; at++) {
        PyObject *number = PyLong_FromLongLong(values[at]);
        if (number == NULL || PyTuple_SetItem(span, at, number) < 0)
            Py_CLEAR(span);
    }
    return span;
}

/* The spans of at most `count` records from a position on, up to before the first that is not as it must be. */
static PyObject *spans(PyObject *module, PyObject *arguments)
{
    Py_buffer section;
    Py_ssize_t position, count;
    if (!PyArg_ParseTuple(arguments, "y*nn:spans", &section, &position, &count))
        return NULL;
    PyObject *found = PyList_New(0);
    Cursor cursor = {section.buf, position, section.len}, record;
    while (found != NULL && count-- > 0 && position >= 0 && take_record(&cursor, &record)) {
        PyObject *span = span_of(&record);
        if (span == NULL && !PyErr_Occurred())
            break;
        if (span == NULL || PyList_Append(found, span) < 0)
            Py_CLEAR(found);
        Py_XDECREF(span);
    }
    PyBuffer_Release(&section);
    return found;
}

/*
 * The program of an AvroSkip: nodes one behind the other, each an operation and its arguments; a child is named by
 * where its node begins, and the first node is the schema's.
 */
enum { NOTHING, BOOLEAN, NUMBER, BYTES_EXACTLY, BYTES, STRING, ENUM, UNION, RECORD, ARRAY, MAP, OPERATIONS };

typedef struct {
    PyObject_HEAD
    Py_ssize_t size;
    int32_t *code;
} AvroSkip;

static PyTypeObject *avro_skip_type;

static int pass_exactly(Cursor *datum, int64_t size)
{
    if (size < 0 || size > datum->end - datum->at)
        return 0;
    datum->at += (Py_ssize_t)size;
    return 1;
}

static int pass_text(Cursor *datum)
{
    int64_t length;
    if (!take_long(datum, &length))
        return 0;
    const char *text = (const char *)datum->data + datum->at;
    if (!pass_exactly(datum, length))
        return 0;
    for (int64_t at = 0; at < length; at++)
        if (text[at] & 0x80) {
            PyObject *decoded = PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, NULL);
            if (decoded == NULL)
                PyErr_Clear();
            Py_XDECREF(decoded);
            return decoded != NULL;
        }
    return 1;
}

static int pass_datum(const int32_t *code, int32_t node, Cursor *datum, int depth);

static int pass_blocks(const int32_t *code, int32_t child, int has_names, Cursor *datum, int depth)
{
    for (;;) {
        int64_t count, size = -1;
        if (!take_long(datum, &count))
            return 0;
        if (count == 0)
            return 1;
        Py_ssize_t began = datum->at;
        if (count < 0) {
            if (!take_long(datum, &size) || size < 0)
                return 0;
            began = datum->at;
        }
        for (uint64_t left = count < 0 ? 0 - (uint64_t)count : (uint64_t)count; left > 0; left--) {
            Py_ssize_t at = datum->at;
            if ((has_names && !pass_text(datum)) || !pass_datum(code, child, datum, depth + 1))
                return 0;
            if (datum->at == at) /* items without bytes, of which there may be as many as a count can say */
                break;
        }
        if (size >= 0 && datum->at - began != size)
            return 0;
    }
}

static int pass_datum(const int32_t *code, int32_t node, Cursor *datum, int depth)
{
    int64_t index;
    const int32_t argument = code[node + 1], *children = code + node + 2;
    if (depth > DEPTH_MAX)
        return 0;
    switch (code[node]) {
    case NOTHING:
        return 1;
    case BOOLEAN:
        return datum->at < datum->end && datum->data[datum->at++] <= 1;
    case NUMBER:
        return pass_number(datum, argument);
    case BYTES_EXACTLY:
        return pass_exactly(datum, argument);
    case BYTES:
        return take_long(datum, &index) && pass_exactly(datum, index);
    case STRING:
        return pass_text(datum);
    case ENUM:
        return take_long(datum, &index) && index >= 0 && index < argument;
    case UNION:
        return take_long(datum, &index) && index >= 0 && index < argument
            && pass_datum(code, children[index], datum, depth + 1);
    case RECORD:
        for (int32_t at = 0; at < argument; at++)
            if (!pass_datum(code, children[at], datum, depth + 1))
                return 0;
        return 1;
    default:
        return pass_blocks(code, argument, code[node] == MAP, datum, depth);
    }
}

/* Whether each operation is a known one, with the arguments that it takes, and each child the beginning of a node. */
static int is_program(const int32_t *code, Py_ssize_t size)
{
    char *begins = size > 0 ? PyMem_Calloc((size_t)size, 1) : NULL;
    int good = begins != NULL;
    for (int pass = 0; good && pass < 2; pass++)
        for (Py_ssize_t at = 0, children, from; good && at < size; at = from + children) {
            int32_t operation = code[at], argument = at + 1 < size ? code[at + 1] : -1;
            int names_one = operation == ARRAY || operation == MAP;
            from = names_one ? at + 1 : at + 2;
            children = names_one ? 1 : operation == UNION || operation == RECORD ? argument : 0;
            begins[at] = 1;
            good = operation >= 0 && operation < OPERATIONS && argument >= 0 && children <= size - from;
            for (Py_ssize_t child = from; pass == 1 && good && child < from + children; child++)
                good = code[child] >= 0 && code[child] < size && begins[code[child]];
        }
    PyMem_Free(begins);
    return good;
}

static PyObject *avro_skip_new(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    const char *code;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(arguments, "y#:AvroSkip", &code, &size))
        return NULL;
    AvroSkip *made = (AvroSkip *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (made == NULL)
        return NULL;
    made->size = size / (Py_ssize_t)sizeof(int32_t);
    made->code = PyMem_Malloc((size_t)size);
    if (made->code != NULL && size > 0)
        memcpy(made->code, code, (size_t)size);
    if (made->code == NULL || size % (Py_ssize_t)sizeof(int32_t) != 0 || !is_program(made->code, made->size)) {
        Py_DECREF(made);
        PyErr_SetString(PyExc_ValueError, "no program of a walk over Avro");
        return NULL;
    }
    return (PyObject *)made;
}

static void avro_skip_free(PyObject *skip)
{
    PyTypeObject *type = Py_TYPE(skip);
    PyMem_Free(((AvroSkip *)skip)->code);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(skip);
    Py_DECREF(type);
}

static PyObject *avro_skip_call(PyObject *skip, PyObject *arguments, PyObject *named)
{
    const char *data;
    Py_ssize_t size, at;
    if (!PyArg_ParseTuple(arguments, "y#n:AvroSkip", &data, &size, &at))
        return NULL;
    Cursor datum = {(const uint8_t *)data, at, size};
    if (at >= 0 && at <= size && pass_datum(((AvroSkip *)skip)->code, 0, &datum, 0))
        return PyLong_FromSsize_t(datum.at);
    PyErr_SetString(PyExc_ValueError, "no such datum is known to begin there");
    return NULL;
}

static PyType_Slot AVRO_SKIP_SLOTS[] = {
    {Py_tp_new, avro_skip_new},
    {Py_tp_dealloc, avro_skip_free},
    {Py_tp_call, avro_skip_call},
    {0, NULL},
};

static PyType_Spec AVRO_SKIP = {
    "log_broker.records._walk.AvroSkip", sizeof(AvroSkip), 0, Py_TPFLAGS_DEFAULT, AVRO_SKIP_SLOTS,
};

/* What a contract asks of keys or of values: the beginnings that it accepts, and the last one that was looked up. */
typedef struct {
    PyObject *accepted, *skip;
    uint8_t frame[FRAME_BYTES];
} Side;

/* 1 where the datum keeps the contract, 0 where somebody must look closer, -1 with a Python error. */
static int keeps(Side *side, PyObject *section, const uint8_t *data, Py_ssize_t start, Py_ssize_t length)
{
    if (length < FRAME_BYTES)
        return 0;
    if (side->skip == NULL || memcmp(side->frame, data + start, FRAME_BYTES) != 0) {
        PyObject *frame = PyBytes_FromStringAndSize((const char *)data + start, FRAME_BYTES);
        PyObject *skip = frame == NULL ? NULL : PyObject_GetItem(side->accepted, frame);
        Py_XDECREF(frame);
        if (skip == NULL)
            return -1;
        Py_XDECREF(side->skip);
        side->skip = skip;
        memcpy(side->frame, data + start, FRAME_BYTES);
    }
    if (side->skip == Py_None)
        return 1;
    if (Py_TYPE(side->skip) == avro_skip_type) {
        Cursor datum = {data, start + FRAME_BYTES, start + length};
        return pass_datum(((AvroSkip *)side->skip)->code, 0, &datum, 0) && datum.at == datum.end;
    }
    PyObject *behind = PyObject_CallFunction(side->skip, "On", section, start + FRAME_BYTES);
    PyObject *wanted = behind == NULL ? NULL : PyLong_FromSsize_t(start + length);
    int kept = wanted == NULL ? -1 : PyObject_RichCompareBool(behind, wanted, Py_EQ);
    Py_XDECREF(behind);
    Py_XDECREF(wanted);
    return kept;
}

/* What is asked of each record besides its contracts; times are deltas. */
typedef struct {
    int key_required, takes_null;
    long long earliest, latest;
} Asked;

static int passes_record(Cursor *record, PyObject *section, Side *keys, Side *values, const Asked *asked)
{
    int64_t time;
    Py_ssize_t start, length;
    if (!pass_byte(record) || !take_long(record, &time) || time < asked->earliest || time > asked->latest
        || !pass_number(record, LONG_BYTES_MAX) || !take_bytes(record, &start, &length))
        return 0;
    if (length < 0 && (asked->key_required || keys->accepted != Py_None))
        return 0;
    if (keys->accepted != Py_None) {
        int kept = keeps(keys, section, record->data, start, length);
        if (kept != 1)
            return kept;
    }
    if (!take_bytes(record, &start, &length))
        return 0;
    if (values->accepted == Py_None || (length < 0 && asked->takes_null))
        return 1;
    return keeps(values, section, record->data, start, length);
}

static PyObject *passes(PyObject *module, PyObject *arguments)
{
    PyObject *section;
    Py_ssize_t count, size;
    char *data;
    Side keys = {NULL, NULL, {0}}, values = {NULL, NULL, {0}};
    Asked asked;
    if (!PyArg_ParseTuple(
            arguments, "SnOOppLL:passes", &section, &count, &keys.accepted, &values.accepted, &asked.key_required,
            &asked.takes_null, &asked.earliest, &asked.latest)
        || PyBytes_AsStringAndSize(section, &data, &size) < 0)
        return NULL;
    Cursor records = {(const uint8_t *)data, 0, size}, record;
    int kept = 1;
    for (Py_ssize_t index = 0; kept == 1 && index < count; index++)
        kept = take_record(&records, &record) ? passes_record(&record, section, &keys, &values, &asked) : 0;
    Py_XDECREF(keys.skip);
    Py_XDECREF(values.skip);
    return kept < 0 ? NULL : PyBool_FromLong(kept && records.at == size);
}

static PyMethodDef METHODS[] = {
    {"is_sound", is_sound, METH_VARARGS, NULL},
    {"passes", passes, METH_VARARGS, NULL},
    {"spans", spans, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_walk", NULL, -1, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__walk(void)
{
    PyObject *module = PyModule_Create(&MODULE);
    if (module == NULL)
        return NULL;
    avro_skip_type = (PyTypeObject *)PyType_FromSpec(&AVRO_SKIP);
    if (avro_skip_type == NULL || PyModule_AddObjectRef(module, "AvroSkip", (PyObject *)avro_skip_type) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
