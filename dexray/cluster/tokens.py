"""Ray clusters that want a token, and what to do when one was not let in.

Ray asks for a token when RAY_AUTH_MODE is "token" where the cluster was started; `ray.init` of an embedded Ray switches
that on by itself. A process that comes without a token, or with another one, is told so by the head, again and again
for twenty seconds, and in the end only that it "failed to connect". The reason is in the chain of causes.
"""

from __future__ import annotations

import os

from dex import StatusCode

MISSING = "no authentication token was found"  # in the words of this process's Ray
REFUSED = "InvalidAuthToken"  # in those of a head that refuses
PLACES = "RAY_AUTH_TOKEN, the file that RAY_AUTH_TOKEN_PATH names, or ~/.ray/auth_token"


def why_unreachable(where: str, error: BaseException) -> tuple[StatusCode, str]:
    """Why there is no connection to Ray, and what to do, in words for people. `where` begins the sentence."""
    said = "\n".join(str(cause) for cause in _chain(error))
    if MISSING in said:
        return StatusCode.UNAUTHENTICATED, (
            f"{where}: RAY_AUTH_MODE is 'token' here, and there is no token. Put the cluster's one in {PLACES}"
        )
    if REFUSED in said:
        if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
            return StatusCode.UNAUTHENTICATED, (
                f"{where}: the cluster wants a token, and the one of this process is not the cluster's. It is looked "
                f"for in {PLACES}, in this order: put the cluster's one there"
            )
        return StatusCode.UNAUTHENTICATED, (
            f"{where}: the cluster wants a token, and this process came without one. Set RAY_AUTH_MODE=token, and have "
            f"the cluster's token in {PLACES}; or start the cluster with RAY_AUTH_MODE=disabled"
        )
    return StatusCode.UNAVAILABLE, f"{where}: {error}"


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
