"""A million schedules: the engine against fate, in one process, on one seed.

The machine, several owners with their journal connections, clients and attempts run in virtual time. Everything that
the engine stands between is simulated, and everything there is worse than it should be: owners are killed between any
two callbacks, frozen and continued beside their successor, cut off from the database; commits have unknown outcomes,
reads come late, messages are lost or overtaken by their repeats, attempts hang and come back as zombies, clocks are set
by an hour. The Flows are generated: every wait, every decision, every policy, drawn by lot.

    file         what it is
    ----------   -----------------------------------------------------------------------------------------
    kernel       processes as event loops over one virtual time; kill, pause, and the fuse between callbacks
    memory       the journal in memory, which the journal's conformance suite is run over
    generate     Flow types and the results of handlers
    cluster      lives of owners, their wire and workers, the network, the Directory
    detached     attempts that survive the life that handed them out
    actions      what can happen: calls of clients, and fate
    clients      who repeat a call until it is answered, and note nothing but answers
    books        a naive reader of a journal: what the events of a run add up to
    auditor      every record, judged by the books and by the workers' log, when it becomes durable
    witness      every answer, judged when it leaves an owner; and the count at the end
    schedule     a plan drawn from a seed, its run, and its end, in which all Flows must settle
    shrink       a plan that fails, made smaller; `story` tells it
    mutants      seeded bugs: the test of the tester
    small        small worlds, exhaustively; `small_worlds` are which

Books, auditor and witness share no code with the engine. They are a naive model, and still twice as long as the five
hundred lines that one would wish for: a quarter keeps the books (twenty-two kinds of events, time travel), a half
judges each kind by what the books and the workers' log say of it, with the evidence that makes a finding readable, and
a quarter judges the seventeen kinds of answers that clients get. A rule that is left out is a bug that is not seen;
`mutants` has one for nearly each of them.

A schedule costs about ten milliseconds of one core, flat over the engine, the loop and the audit: no tenth of it is in
one place. So half of the schedules have Flows that come far, where a Flow-step costs a third of what it costs in a
short one; what is measured is how soon seeded bugs are caught, and not how many schedules there are.

The same seed and the same code give the same run, to the byte, in any process (`test_determinism`).
"""
