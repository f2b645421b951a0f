"""Frames of sub-document requests, encoded and decoded by the tests themselves."""

import struct

from tests.frames import request

GET, EXISTS, DICT_ADD, DICT_UPSERT, DELETE, REPLACE, PUSH_LAST, PUSH_FIRST, INSERT, ADD_UNIQUE, COUNTER, MULTI_LOOKUP, MULTI_MUTATION, GET_COUNT, REPLACE_BODY = range(0xC5, 0xD4)
WHOLE_GET, WHOLE_SET, WHOLE_DELETE = 0x00, 0x01, 0x04

MKDIR_P, XATTR, EXPAND_MACROS, BINARY = 0x01, 0x04, 0x10, 0x20
MKDOC, ADD, ACCESS_DELETED, CREATE_AS_DELETED, REVIVE, REPLICA_READ = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20

PATH_ENOENT, PATH_MISMATCH, PATH_EINVAL, PATH_E2BIG, DOC_E2DEEP, CANT_INSERT, NOT_JSON, NUM_ERANGE, DELTA_EINVAL, PATH_EEXISTS, VALUE_ETOODEEP, INVALID_COMBO, MULTI_FAILURE, SUCCESS_DELETED = range(0xC0, 0xCE)
INVALID_FLAG_COMBO, INVALID_KEY_COMBO, UNKNOWN_MACRO, UNKNOWN_VATTR, CANT_MODIFY_VATTR, MULTI_FAILURE_DELETED, INVALID_ORDER, UNKNOWN_VATTR_MACRO, CAN_ONLY_REVIVE, DELETED_CANT_HAVE_VALUE = range(0xCE, 0xD8)
XATTR_EINVAL = 0x87


def single(opcode, key, path, operand=b"", flags=0, *, expiry=None, doc_flags=None, **named):
    """A request with one path."""
    extras = struct.pack(">HB", len(path), flags)
    extras += b"" if expiry is None else struct.pack(">I", expiry)
    extras += b"" if doc_flags is None else bytes([doc_flags])
    return request(opcode, key, path + operand, extras, **named)


def lookups(key, *specs, doc_flags=None, **named):
    """A multi lookup; each spec is `opcode, path` or `opcode, path, flags`."""
    value = b"".join(struct.pack(">BBH", opcode, flags[0] if flags else 0, len(path)) + path for opcode, path, *flags in specs)
    return request(MULTI_LOOKUP, key, value, b"" if doc_flags is None else bytes([doc_flags]), **named)


def mutations(key, *specs, expiry=None, doc_flags=None, **named):
    """A multi mutation; each spec is `opcode, path, operand` or `opcode, path, operand, flags`."""
    value = b"".join(
        struct.pack(">BBHI", opcode, flags[0] if flags else 0, len(path), len(operand)) + path + operand for opcode, path, operand, *flags in specs
    )
    extras = (b"" if expiry is None else struct.pack(">I", expiry)) + (b"" if doc_flags is None else bytes([doc_flags]))
    return request(MULTI_MUTATION, key, value, extras, **named)


def found(value):
    """The results of a multi lookup: a status and a value each."""
    results = []
    while value:
        status, length = struct.unpack_from(">HI", value)
        results.append((status, value[6 : 6 + length]))
        value = value[6 + length :]
    return results


def changed(value):
    """The results of a multi mutation: index and value each."""
    results = []
    while value:
        index, status, length = struct.unpack_from(">BHI", value)
        assert status == 0
        results.append((index, value[7 : 7 + length]))
        value = value[7 + length :]
    return results
