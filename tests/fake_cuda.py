"""CUDA's streams, events and graphs, imitated on the CPU: what can be checked of them without a GPU.

Operations run at once, so results say nothing about order; instead, vector clocks do. Every operation notes which
memory it reads and writes, and a :class:`Race` is raised when it touches what another stream wrote (or writes what
another one read) without an event or a wait between them, as on a GPU it might come too early.

Graphs are recorded as on a GPU: capturing changes no memory, replaying repeats the operations on the same addresses,
with the Python numbers of the time of capture.
"""

from __future__ import annotations

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from cog.logreg import streaming


class Race(AssertionError):
    """Two streams use the same memory, and nothing says which comes first."""


class Memory:
    """Who read and wrote what, and when."""

    def __init__(self):
        self.writes, self.reads = {}, {}

    def check(self, stream, read, written):
        stream.clock[stream.name] = now = stream.clock.get(stream.name, 0) + 1

        def before(who, when):
            return stream.clock.get(who, 0) >= when

        for key in read | written:
            if key in self.writes and not before(*self.writes[key]):
                raise Race(f"stream {stream.name} uses what stream {self.writes[key][0]} writes")
        for key in written:
            for who, when in self.reads.get(key, {}).items():
                if not before(who, when):
                    raise Race(f"stream {stream.name} writes what stream {who} reads")
            self.writes[key], self.reads[key] = (stream.name, now), {}
        for key in read - written:
            self.reads.setdefault(key, {})[stream.name] = now


class Stream:
    """Orders the operations issued to it."""

    def __init__(self, cuda, name):
        self.cuda, self.name, self.clock, self.capture = cuda, name, {}, None

    def merge(self, clock):
        for key, value in clock.items():
            self.clock[key] = max(self.clock.get(key, 0), value)

    def wait_stream(self, other):
        event = Event(self.cuda)
        event.record(other)
        self.wait_event(event)

    def wait_event(self, event):
        if event.clock is None:
            return
        if self.capture is not event.capture:
            assert self.capture is None, "a captured stream waits for work outside of the graph"
            assert event.capture is self.cuda.capture, "a stream waits for work of another graph"
            self.outside = self.clock
            self.capture, self.clock = event.capture, {}
            self.capture.joined.append(self)
        self.merge(event.clock)

    def synchronize(self):
        assert self.cuda.capture is None, "waiting while a graph is captured"
        for stream in self.cuda.streams:  # what the host issues from now on comes later
            stream.merge(self.clock)


class Event:
    """A point in the work of a stream."""

    def __init__(self, cuda):
        self.cuda, self.clock, self.capture = cuda, None, None

    def record(self, stream):
        self.clock, self.capture = dict(stream.clock), stream.capture

    def synchronize(self):
        pass


class Graph:
    """Operations recorded once and repeated."""

    def __init__(self, cuda):
        self.cuda, self.operations, self.saved, self.keep = cuda, [], {}, []
        self.read, self.written, self.n_replays = set(), set(), 0

    def capture_begin(self, capture_error_mode):
        assert capture_error_mode == "thread_local"
        assert self.cuda.current is not self.cuda.streams[-1], "the default stream cannot be captured"
        self.cuda.capture, self.memory = self, Memory()
        self.origin = self.cuda.current
        self.origin.outside, self.origin.clock, self.origin.capture = self.origin.clock, {}, self
        self.joined = [self.origin]

    def capture_end(self):
        for stream in self.joined:
            ends = stream.clock.get(stream.name, 0)
            assert self.origin.clock.get(stream.name, 0) >= ends, f"stream {stream.name} has not joined again"
        for stream in self.joined:
            stream.clock, stream.capture = stream.outside, None
        self.cuda.capture = None
        for tensor, values in self.saved.values():
            tensor.copy_(values)
        self.cuda.graphs.append(self)

    def replay(self):
        self.n_replays += 1
        self.cuda.memory.check(self.cuda.current, self.read, self.written)
        with torch.no_grad():
            for function, args, kwargs, outputs in self.operations:
                results, _ = tree_flatten(function(*args, **kwargs))
                for old, new in zip(outputs, results, strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class FakeCuda(TorchDispatchMode):
    """Takes the place of ``torch.cuda`` while it is active."""

    def __init__(self, monkeypatch, n_streams=6):
        super().__init__()
        self.memory, self.capture, self.graphs, self.keep = Memory(), None, [], []
        self.streams = [Stream(self, i) for i in range(n_streams)] + [Stream(self, "default")]
        self.current = self.streams[-1]
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self.use)
        monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "Event", lambda: Event(self))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(self))
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())
        empty, make = torch.empty, streaming.Slot.__init__

        def unpinned(*args, pin_memory=False, **kwargs):
            return empty(*args, **kwargs)

        def slot(self_, *args):
            make(self_, *args)
            self_.filled, self_.used = Event(self), Event(self)

        monkeypatch.setattr(torch, "empty", unpinned)
        monkeypatch.setattr(streaming.Slot, "__init__", slot)

    @contextlib.contextmanager
    def use(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        read, written = set(), set()
        inputs = []
        for i, argument in enumerate(function._schema.arguments):
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            for tensor in tree_flatten(value)[0]:
                if isinstance(tensor, torch.Tensor):
                    changes = argument.alias_info is not None and argument.alias_info.is_write
                    inputs.append((tensor, changes))
                    (written if changes else read).add(tensor.untyped_storage().data_ptr())
        self.keep += [tensor for tensor, _ in inputs]  # addresses are not given away again
        graph = self.capture
        if graph is not None:
            assert self.current.capture is graph, "work beside the graph while it is captured"
            for tensor, changes in inputs:
                if changes and tensor.untyped_storage().data_ptr() not in graph.saved:
                    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
                    graph.saved[tensor.untyped_storage().data_ptr()] = whole, whole.clone()
        result = function(*args, **kwargs)
        outputs = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor)]
        self.keep += outputs
        addresses = {t.untyped_storage().data_ptr() for t, _ in inputs}
        is_view = all(t.untyped_storage().data_ptr() in addresses for t in outputs) and not written
        if (is_view and outputs) or function._schema.name == "aten::empty":
            return result
        written |= {t.untyped_storage().data_ptr() for t in outputs}
        if graph is not None:
            graph.memory.check(self.current, read, written)
            graph.operations.append((function, args, kwargs, outputs))
            graph.read |= read
            graph.written |= written
        else:
            self.memory.check(self.current, read, written)
        return result
