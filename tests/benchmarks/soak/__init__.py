"""The soak: a real cluster under mixed work and seeded faults, and an auditor who believes nobody.

    python -m tests.benchmarks.soak --minutes 10 --seed 7

What runs where
- `nodes`: one process that owns the Ray cluster, a head and two worker nodes. Killed with all that came of it, it is
  the loss of a cluster; the next one begins on the same database.
- A private PostgreSQL server.
- `producer`: client processes. They start Flows of every kind (`flows`, `plan`), feed them, wait for them, and write
  down in `records` what they are about to ask and what was acknowledged. A producer that was killed reads its own
  records at its next start and goes on with the same request ids, so that nothing stays unknown.
- `faults`: kills, pauses, outages, chosen from the seed, until the time is over. Then all is whole again, the producers
  finish what they have begun, and every Flow must settle within a bound.
- `evidence`: what an auditor may look at. Closed runs are removed after a while, so their rows are kept as they close.
- `audit`: from the producers' records, the handlers' lines and the rows of the journal it tells what must not be. It
  imports nothing of the engine, and reads the database with psycopg and msgpack alone.

Exit code 1 on any violation; then the whole folder of the run (records, faults, the journal's events, the logs of Ray)
is kept, and its place printed.
"""
