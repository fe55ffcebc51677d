"""What a Client and a FlowService say to each other, as plain immutable structs.

`service` holds the requests with their answers, `specs` deployed Flows as data. Structs are encoded with msgpack by
`msgspec`: fields are only added, with a default; one that changes its meaning gets a new name.

Values of users travel as payloads: bytes made by `dex.values`, opaque to everyone between the two ends. A payload
over `dex.values.BLOB_THRESHOLD` is replaced by a reference, and its bytes travel beside it in a `blobs` mapping by
content hash.
"""
