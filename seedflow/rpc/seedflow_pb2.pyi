from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ActorMessage(_message.Message):
    __slots__ = ("register", "step", "heartbeat", "fault", "leave")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    register: Register
    step: Step
    heartbeat: Heartbeat
    fault: Fault
    leave: Leave
    def __init__(self, register: _Optional[_Union[Register, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ...) -> None: ...

class LearnerMessage(_message.Message):
    __slots__ = ("granted", "refused", "actions", "exit")
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    granted: Granted
    refused: Refused
    actions: Actions
    exit: Exit
    def __init__(self, granted: _Optional[_Union[Granted, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., actions: _Optional[_Union[Actions, _Mapping]] = ..., exit: _Optional[_Union[Exit, _Mapping]] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("version", "token", "role", "index", "generation", "fingerprint", "groups", "envs")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ENVS_FIELD_NUMBER: _ClassVar[int]
    version: int
    token: str
    role: str
    index: int
    generation: int
    fingerprint: str
    groups: int
    envs: int
    def __init__(self, version: _Optional[int] = ..., token: _Optional[str] = ..., role: _Optional[str] = ..., index: _Optional[int] = ..., generation: _Optional[int] = ..., fingerprint: _Optional[str] = ..., groups: _Optional[int] = ..., envs: _Optional[int] = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("lease_id", "block", "env_start", "env_stop", "groups", "envs")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    ENV_START_FIELD_NUMBER: _ClassVar[int]
    ENV_STOP_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ENVS_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    block: int
    env_start: int
    env_stop: int
    groups: int
    envs: int
    def __init__(self, lease_id: _Optional[int] = ..., block: _Optional[int] = ..., env_start: _Optional[int] = ..., env_stop: _Optional[int] = ..., groups: _Optional[int] = ..., envs: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "retryable")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    retryable: bool
    def __init__(self, reason: _Optional[str] = ..., retryable: _Optional[bool] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("group", "payload")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    group: int
    payload: bytes
    def __init__(self, group: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Actions(_message.Message):
    __slots__ = ("group", "payload")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    group: int
    payload: bytes
    def __init__(self, group: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Fault(_message.Message):
    __slots__ = ("text", "kind")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    text: str
    kind: str
    def __init__(self, text: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

class Exit(_message.Message):
    __slots__ = ("reason", "code")
    REASON_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    code: str
    def __init__(self, reason: _Optional[str] = ..., code: _Optional[str] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
