"""Files as torch.save writes them, without torch: stand-ins pickle under its names, and storages are bytes."""
import collections
import io
import json
import pickle
import struct
import sys
import types
import zipfile

CLASSES = {"F32": "FloatStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage", "F64": "DoubleStorage", "I64": "LongStorage", "I32": "IntStorage",
           "U8": "ByteStorage", "BOOL": "BoolStorage"}
MAGIC, PROTOCOL = 0x1950a86a20f9469cfc6c, 1001


def stand_in(module, name, thing):
    thing.__module__, thing.__qualname__, thing.__name__ = module, name, name
    return thing


def rebuild_tensor(*_arguments):
    """Nothing: only its name is written."""


def rebuild_parameter(*_arguments):
    """Likewise."""


TENSOR = stand_in("torch._utils", "_rebuild_tensor_v2", rebuild_tensor)
PARAMETER = stand_in("torch._utils", "_rebuild_parameter", rebuild_parameter)
STORAGES = {kind: stand_in("torch", name, type(name, (), {})) for kind, name in CLASSES.items()}


class Storage:
    def __init__(self, kind, raw, key):
        self.kind, self.raw, self.key = kind, bytes(raw), key

    def size(self):
        return {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2}.get(self.kind, 1)


class Tensor:
    """Elements of a storage from `offset` on; row by row, unless strides say otherwise."""

    def __init__(self, storage, shape, offset=0, strides=None, parameter=False):
        self.storage, self.shape, self.offset, self.parameter = storage, tuple(shape), offset, parameter
        self.strides = strides
        if strides is None:
            steps = [1]
            for n in reversed(self.shape[1:]):
                steps.append(steps[-1] * n)
            self.strides = tuple(reversed(steps[:len(self.shape)]))

    def __reduce__(self):
        plain = (TENSOR, (self.storage, self.offset, self.shape, self.strides, False, collections.OrderedDict()))
        if not self.parameter:
            return plain
        made = Tensor(self.storage, self.shape, self.offset, self.strides)
        return PARAMETER, (made, True, collections.OrderedDict())


class Pickler(pickle.Pickler):
    """`older`: ids have a sixth part, which is None."""

    def __init__(self, file, protocol, older):
        super().__init__(file, protocol)
        self.older, self.storages = older, {}

    def persistent_id(self, obj):
        if not isinstance(obj, Storage):
            return None
        self.storages[obj.key] = obj
        return ("storage", STORAGES[obj.kind], obj.key, "cpu", len(obj.raw) // obj.size()) + ((None,) if self.older else ())


def modules():
    """What the pickler looks its stand-ins up in."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    torch._utils = utils
    utils._rebuild_tensor_v2, utils._rebuild_parameter = TENSOR, PARAMETER
    for kind, name in CLASSES.items():
        setattr(torch, name, STORAGES[kind])
    return {"torch": torch, "torch._utils": utils}


def pickled(value, protocol, older=False):
    file = io.BytesIO()
    pickler = Pickler(file, protocol, older)
    kept = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
    sys.modules.update(modules())
    try:
        pickler.dump(value)
    finally:
        for name, module in kept.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module
    return file.getvalue(), pickler.storages


def write_zip(path, value, protocol=2, folder="archive", order=b"little", compression=zipfile.ZIP_STORED):
    data, storages = pickled(value, protocol)
    with zipfile.ZipFile(path, "w", compression) as z:
        z.writestr(folder + "/data.pkl", data)
        z.writestr(folder + "/byteorder", order)
        for storage in storages.values():
            z.writestr("%s/data/%s" % (folder, storage.key), storage.raw)
        z.writestr(folder + "/version", b"3\n")


def write_older(path, value, protocol=2, little=True):
    data, storages = pickled(value, protocol, older=True)
    keys = sorted(storages)
    machine = {"protocol_version": PROTOCOL, "little_endian": little, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    with open(path, "wb") as f:
        for part in (MAGIC, PROTOCOL, machine):
            pickle.dump(part, f, protocol)
        f.write(data)
        pickle.dump(keys, f, protocol)
        for key in keys:
            f.write(struct.pack("<q", len(storages[key].raw) // storages[key].size()) + storages[key].raw)


def state_dict(tensors, parameters=False):
    """name -> (type, shape, bytes), as read_safetensors has them; the same bytes object is one storage."""
    storages, out = {}, collections.OrderedDict()
    for name, (kind, shape, raw) in tensors.items():
        storage = storages.setdefault(id(raw), Storage(kind, raw, str(len(storages))))
        out[name] = Tensor(storage, shape, parameter=parameters)
    out._metadata = collections.OrderedDict({"": {"version": 1}, "model": {"version": 1}})
    return out


def write_shards(folder, tensors, count, write=write_zip):
    names, index = list(tensors), {}
    for i in range(count):
        file = "pytorch_model-%05d-of-%05d.bin" % (i + 1, count)
        part = {name: tensors[name] for name in names[i::count]}
        write(folder / file, state_dict(part))
        index.update({name: file for name in part})
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": index}))
