"""The state machine of a Flow: what happens, and nothing of how.

This package knows no database, no Ray, no clock, no randomness and no asyncio. One run of one Flow is a `FlowState`.
A command meets the state at a time and answers with events (`decide`); events are applied to the state (`evolve`),
now and again at every recovery.

Rules
- Events record outcomes: which messages a wait took, when the retry is due, which Steps were cancelled. `evolve`
  never decides, so an old journal means the same to new code.
- A command is decided event by event: each event is applied as it is emitted, and the next decision sees it (`Turn`).
  The events of one command are one record of the journal: all of them are durable, or none.
- Time and ids are arguments. All deadlines are absolute, seconds since the epoch, judged by the owner's clock alone.
- User values are payloads, bytes that nobody here opens.
- Invariants (`invariants`) are checked after every command, in production too. A violated one stops the command; the
  owner parks the Flow.

One module for one concern: `steps` the life of a Step execution, `waits` which conditions win and what they take,
`retries` the delay before an attempt, `locks` Attribute locks, `closing` how a Flow ends, `tasks` what an attempt is
given to see.
"""
