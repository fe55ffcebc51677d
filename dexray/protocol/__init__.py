"""The words that the parts of dexray say to each other.

Plain immutable structs and protocols, nothing that acts. `attempts` holds what goes into a Step attempt and comes out
of it, `subflows` what is known of a child Flow, `ports` who hands attempts out, who hears of them, and the way to other
owners. (What clients say to the engine, and deployed Flows as data, are in `dex.wire`.) Structs are encoded with
msgpack by `msgspec`: fields are only added, with a default; one that changes its meaning gets a new name.

Values of users travel as payloads: bytes made by `dex.values`, opaque to everyone between the two ends. A payload
over `dex.values.BLOB_THRESHOLD` is a reference, and the bytes it stands for travel beside it in a `blobs` mapping by
content hash.
"""
