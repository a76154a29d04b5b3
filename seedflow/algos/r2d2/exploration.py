"""How much each training environment explores: a ladder from often to almost never.

Examples
--------
>>> [round(epsilon, 3) for epsilon in exploration_ladder(4, base=0.4, power=7.0)]
[0.4, 0.006, 0.047, 0.001]
"""

from __future__ import annotations


def exploration_ladder(envs: int, base: float, power: float) -> list[float]:
    """Probability of a random action for each of N training environments, by id.

    Rung i of N has ``base^(1 + power i / (N - 1))`` (Horgan et al. 2018, arXiv 1803.00933, eq. in section 4).
    Ids take the rungs in van der Corput's order, so that the environments of any few actors cover the
    whole ladder.

    Parameters
    ----------
    envs
        N, the configured number of training environments; a single one explores with `base`.
    base, power
        See above.
    """
    span = max(envs - 1, 1)
    return [base ** (1.0 + power * rung / span) for rung in van_der_corput_ranks(envs)]


def van_der_corput_ranks(count: int) -> list[int]:
    """The ranks of the first `count` terms of van der Corput's sequence in base 2.

    Examples
    --------
    >>> van_der_corput_ranks(8), van_der_corput_ranks(5)
    ([0, 4, 2, 6, 1, 5, 3, 7], [0, 3, 2, 4, 1])
    """
    digits = max(count - 1, 1).bit_length()
    terms = [int(f"{i:0{digits}b}"[::-1], 2) for i in range(count)]
    ranks = {term: rank for rank, term in enumerate(sorted(terms))}
    return [ranks[term] for term in terms]
