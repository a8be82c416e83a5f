/*
 * Threads that write to files and wait for the disk without Python's lock: what an `AppendJob` does where it is one
 * write and syncs of open files. They touch no Python object; what a write holds is taken and given back by the thread
 * that hands it in and asks what is finished, which holds the lock. One eventfd tells that something is.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#define _GNU_SOURCE
#include <Python.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

enum { IOV_MOST = 1024 }; /* buffers that one pwritev takes on Linux */

typedef struct Job {
    struct Job *next;
    PyObject *token;
    int descriptor, error;
    off_t position;
    Py_ssize_t buffers, syncs;
    Py_buffer *held;
    struct iovec *parts;
    int *synced;
} Job;

typedef struct {
    Job *first, *last;
} Queue;

typedef struct {
    PyObject_HEAD
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    Queue waiting, finished;
    pthread_t *threads;
    int started, idle, threads_max, descriptor, is_closed;
    Py_ssize_t pending; /* jobs that no thread has taken */
    pid_t process;
} DiskThreads;

static void put(Queue *queue, Job *job)
{
    job->next = NULL;
    if (queue->last)
        queue->last->next = job;
    else
        queue->first = job;
    queue->last = job;
}

static Job *take(Queue *queue)
{
    Job *job = queue->first;
    queue->first = job->next;
    if (!queue->first)
        queue->last = NULL;
    return job;
}

/* Write all parts one behind the other; return 0 or an errno, when any of them may have been written. */
static int write_parts(int descriptor, struct iovec *part, Py_ssize_t count, off_t position)
{
    while (count > 0) {
        ssize_t written = pwritev(descriptor, part, (int)(count < IOV_MOST ? count : IOV_MOST), position);
        if (written < 0) {
            if (errno == EINTR)
                continue;
            return errno;
        }
        size_t rest = (size_t)written;
        int went_on = rest > 0;
        position += written;
        for (; count > 0 && rest >= part->iov_len; part++, count--, went_on = 1)
            rest -= part->iov_len;
        if (!went_on)
            return EIO; /* a file that takes nothing, and does not say why */
        if (count > 0) {
            part->iov_base = (char *)part->iov_base + rest;
            part->iov_len -= rest;
        }
    }
    return 0;
}

static int run(Job *job)
{
    int error = write_parts(job->descriptor, job->parts, job->buffers, job->position);
    for (Py_ssize_t at = 0; error == 0 && at < job->syncs; at++)
        while (fdatasync(job->synced[at]) != 0)
            if (errno != EINTR) {
                error = errno;
                break;
            }
    return error;
}

static void *serve(void *threads)
{
    DiskThreads *self = threads;
    pthread_mutex_lock(&self->lock);
    for (;;) {
        while (!self->waiting.first && !self->is_closed) {
            self->idle++;
            pthread_cond_wait(&self->arrived, &self->lock);
            self->idle--;
        }
        if (!self->waiting.first)
            break;
        Job *job = take(&self->waiting);
        self->pending--;
        pthread_mutex_unlock(&self->lock);
        job->error = run(job);
        pthread_mutex_lock(&self->lock);
        int is_first = self->finished.first == NULL;
        put(&self->finished, job);
        if (is_first) {
            pthread_mutex_unlock(&self->lock); /* who is woken may run at once, and wants it */
            eventfd_write(self->descriptor, 1);
            pthread_mutex_lock(&self->lock);
        }
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

/* Forget a job; Python's lock is held. */
static void forget(Job *job)
{
    for (Py_ssize_t at = 0; at < job->buffers; at++)
        PyBuffer_Release(&job->held[at]);
    Py_XDECREF(job->token);
    PyMem_Free(job->held);
    PyMem_Free(job->parts);
    PyMem_Free(job->synced);
    PyMem_Free(job);
}

static void *zeroed(Py_ssize_t count, size_t size)
{
    return PyMem_Calloc(count > 0 ? (size_t)count : 1, size);
}

static Job *new_job(PyObject *token, int descriptor, long long position, PyObject *buffers, PyObject *synced)
{
    Job *job = zeroed(1, sizeof *job);
    if (job == NULL)
        return (Job *)PyErr_NoMemory();
    Py_INCREF(token);
    job->token = token;
    job->descriptor = descriptor;
    job->position = (off_t)position;
    Py_ssize_t count = PyTuple_Size(buffers);
    job->syncs = PyTuple_Size(synced);
    job->held = zeroed(count, sizeof *job->held);
    job->parts = zeroed(count, sizeof *job->parts);
    job->synced = zeroed(job->syncs, sizeof *job->synced);
    if (job->held == NULL || job->parts == NULL || job->synced == NULL) {
        PyErr_NoMemory();
        goto failed;
    }
    for (; job->buffers < count; job->buffers++) {
        Py_buffer *held = &job->held[job->buffers];
        if (PyObject_GetBuffer(PyTuple_GetItem(buffers, job->buffers), held, PyBUF_SIMPLE) < 0)
            goto failed;
        job->parts[job->buffers] = (struct iovec){held->buf, (size_t)held->len};
    }
    for (Py_ssize_t at = 0; at < job->syncs; at++) {
        job->synced[at] = (int)PyLong_AsLong(PyTuple_GetItem(synced, at));
        if (PyErr_Occurred())
            goto failed;
    }
    return job;
failed:
    forget(job);
    return NULL;
}

/* Start one more thread, deaf to signals, which are the interpreter's; with the lock of `self`. */
static int start_thread(DiskThreads *self)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&self->threads[self->started], NULL, serve, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    self->started += error == 0;
    return error;
}

static PyObject *submit(PyObject *object, PyObject *arguments)
{
    DiskThreads *self = (DiskThreads *)object;
    PyObject *token, *buffers, *synced;
    int descriptor;
    long long position;
    if (!PyArg_ParseTuple(
            arguments, "OiLO!O!:submit", &token, &descriptor, &position, &PyTuple_Type, &buffers, &PyTuple_Type,
            &synced))
        return NULL;
    if (self->is_closed) {
        PyErr_SetString(PyExc_ValueError, "these threads are closed");
        return NULL;
    }
    Job *job = new_job(token, descriptor, position, buffers, synced);
    if (job == NULL)
        return NULL;
    pthread_mutex_lock(&self->lock);
    int error = 0;
    if (self->pending >= self->idle && self->started < self->threads_max) /* who is woken stays idle until it runs */
        error = start_thread(self);
    if (error == 0 || self->started > 0) {
        put(&self->waiting, job);
        self->pending++;
        error = 0;
    }
    int wakes = self->idle > 0;
    pthread_mutex_unlock(&self->lock);
    if (error != 0) {
        forget(job);
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (wakes)
        pthread_cond_signal(&self->arrived);
    Py_RETURN_NONE;
}

static PyObject *finished(PyObject *object, PyObject *nothing)
{
    (void)nothing;
    DiskThreads *self = (DiskThreads *)object;
    eventfd_t count;
    eventfd_read(self->descriptor, &count);
    pthread_mutex_lock(&self->lock);
    Job *job = self->finished.first;
    self->finished = (Queue){NULL, NULL};
    pthread_mutex_unlock(&self->lock);
    PyObject *found = PyList_New(0);
    while (job) {
        Job *next = job->next;
        PyObject *each = found == NULL ? NULL : Py_BuildValue("(Oi)", job->token, job->error);
        if (each == NULL || PyList_Append(found, each) < 0)
            Py_CLEAR(found);
        Py_XDECREF(each);
        forget(job);
        job = next;
    }
    return found;
}

static PyObject *fileno_of(PyObject *object, PyObject *nothing)
{
    (void)nothing;
    return PyLong_FromLong(((DiskThreads *)object)->descriptor);
}

static PyObject *close_threads(PyObject *object, PyObject *nothing)
{
    (void)nothing;
    DiskThreads *self = (DiskThreads *)object;
    if (self->process != getpid())
        Py_RETURN_NONE; /* a fork has none of the threads, and perhaps a lock that nobody will give back */
    pthread_mutex_lock(&self->lock);
    self->is_closed = 1;
    int started = self->started;
    self->started = 0;
    pthread_cond_broadcast(&self->arrived);
    pthread_mutex_unlock(&self->lock);
    Py_BEGIN_ALLOW_THREADS
    for (int at = 0; at < started; at++)
        pthread_join(self->threads[at], NULL);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static void free_threads(PyObject *object)
{
    DiskThreads *self = (DiskThreads *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->descriptor >= 0) {
        Py_XDECREF(close_threads(object, NULL));
        while (self->finished.first)
            forget(take(&self->finished));
        close(self->descriptor);
        if (self->process == getpid()) {
            pthread_cond_destroy(&self->arrived);
            pthread_mutex_destroy(&self->lock);
        }
    }
    PyMem_Free(self->threads);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyObject *new_threads(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    static char *names[] = {"", NULL};
    int threads_max;
    if (!PyArg_ParseTupleAndKeywords(arguments, named, "i:DiskThreads", names, &threads_max))
        return NULL;
    if (threads_max < 1) {
        PyErr_SetString(PyExc_ValueError, "at least one thread is needed");
        return NULL;
    }
    DiskThreads *self = PyObject_New(DiskThreads, type);
    if (self == NULL)
        return NULL;
    self->waiting = self->finished = (Queue){NULL, NULL};
    self->started = self->idle = self->is_closed = 0;
    self->pending = 0;
    self->threads_max = threads_max;
    self->process = getpid();
    self->descriptor = -1;
    self->threads = zeroed(threads_max, sizeof *self->threads);
    if (self->threads == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (self->descriptor < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(self);
        return NULL;
    }
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->arrived, NULL);
    return (PyObject *)self;
}

static PyMethodDef THREAD_METHODS[] = {
    {"submit", submit, METH_VARARGS, NULL},
    {"finished", finished, METH_NOARGS, NULL},
    {"fileno", fileno_of, METH_NOARGS, NULL},
    {"close", close_threads, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot THREAD_SLOTS[] = {
    {Py_tp_new, new_threads},
    {Py_tp_dealloc, free_threads},
    {Py_tp_methods, THREAD_METHODS},
    {0, NULL},
};

static PyType_Spec THREADS = {
    "log_broker.server.process._disk_threads.DiskThreads", sizeof(DiskThreads), 0, Py_TPFLAGS_DEFAULT, THREAD_SLOTS,
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_disk_threads", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__disk_threads(void)
{
    PyObject *module = PyModule_Create(&MODULE);
    if (module == NULL)
        return NULL;
    PyObject *type = PyType_FromSpec(&THREADS);
    if (type == NULL || PyModule_AddObjectRef(module, "DiskThreads", type) < 0) {
        Py_XDECREF(type);
        Py_DECREF(module);
        return NULL;
    }
    Py_DECREF(type);
    return module;
}
