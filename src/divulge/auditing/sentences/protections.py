"""Sentences about protection: private training and guards at the endpoint."""

from __future__ import annotations

from divulge.auditing.wording import count, percent, size

CURVES = "The chance of a reconstruction, at most, against the privacy spent, assuming the best blind guess is found."


def noise_title(epsilon: float, accepted: float, blind: float, default: bool) -> str:
    """The title of the advice on private training."""
    known = "" if default else f" (a blind guess has up to {percent(blind)})"
    return (
        f"Private training at epsilon {size(epsilon)} would keep the chance of a reconstruction below "
        f"{percent(accepted)}{known}, assuming the best blind guess is the one found"
    )


def noise_meaning(noise: float, price: str, bounded: str) -> str:
    """What private training guarantees; ``bounded`` says the chance."""
    return f"Trained privately with noise multiplier {size(noise)}, from the first step to the last: {bounded} {price}"


def bounded_chance(close: float, chance: float, blind: float, ceiling: float, at_ceiling: float) -> str:
    """The bound on a reconstruction, with what is assumed and what is proven without the assumption."""
    if at_ceiling < 0.995:
        proven = f"That gives a chance of at most {percent(at_ceiling)} without the assumption."
    else:
        proven = "With that ceiling nothing is proven without the assumption."
    return (
        f"Whoever knows every other record, and of this one only the population that it comes from, rebuilds it to "
        f"within {percent(close)} of the data's variance with a chance of at most {percent(chance)}. This is assuming "
        f"the best blind guess is the one found, which is right in at most {percent(blind)}. The proven ceiling for "
        f"every blind guess is {percent(ceiling)}. {proven} The bound does not hold for someone who knows part of the "
        "record, such as all columns but one: their blind guess is better."
    )


def noise_certainty(records: int, guesses: int, confidence: float) -> str:
    """What the guarantee rests on."""
    return (
        "The bound is a theorem (Balle et al. 2022, section VII; Hayes et al. 2023) about the chance of the best blind "
        f"guess. That chance is estimated: the best of {count(guesses, 'guess', 'guesses')}, judged on "
        f"{count(records, 'record')}. The limit holds for all of these guesses at once with {percent(confidence)} "
        "confidence."
    )


def noise_remedy(noise: float, epsilon: float, delta: float, accepted: float, price: str) -> str:
    """Private training as a remedy."""
    return (
        f"Private training with noise multiplier {size(noise)} (epsilon {size(epsilon)} at delta {size(delta)}), "
        "including everything that is fitted to records before it: keeps the chance of a reconstruction below "
        f"{percent(accepted)} by a theorem, assuming the best blind guess is the one found. {price}"
    )


def unmeasured_price(noise: float) -> str:
    """What nobody measured."""
    return (
        "What it costs in accuracy was not measured, which needs unseen records, the recipe and time: train with noise "
        f"multiplier {size(noise)} and audit the result."
    )


def measured_price(then: float, now: float) -> str:
    """What private training costs."""
    return (
        f"Measured price: one private run of the same recipe has a balanced accuracy of {percent(then)} on unseen "
        f"records (this model {percent(now)})."
    )


def privacy_in_words(epsilon: float, delta: float, reason: str) -> str:
    """The privacy of a model in one line; ``reason`` says why none can be claimed."""
    said = f"epsilon {size(epsilon)} at delta {size(delta)}"
    return f"not claimed ({reason}); the noise would spend {said}" if reason else said


def private_title(epsilon: float, delta: float, reason: str) -> str:
    """The title of the finding on a model that was trained with noise."""
    if reason:
        return f"The model was trained with noise, and no privacy can be claimed: {reason}"
    return f"The model was trained with differential privacy: epsilon {size(epsilon)} at delta {size(delta)}"


def private_meaning(bounded: str, reason: str) -> str:
    """What the privacy of the model guarantees; ``bounded`` says the chance."""
    if reason:
        return (
            "Whoever knows the seed repeats the noise and removes it. Train once more with noise that nobody can "
            "repeat; the recipe stays the same."
        )
    return f"By its training: {bounded}"


def private_beside(epsilon: float, taken: bool, tried: bool) -> str:
    """Whether what the attacks got fits the guarantee."""
    if not tried:
        return f"No attack on records ran to its end, so epsilon {size(epsilon)} was not put to the test."
    if taken:
        return (
            f"An attack took records although the recipe says epsilon {size(epsilon)}. The bound allows that with some "
            "chance. If it repeats with other seeds, the recipe or the accounting is wrong."
        )
    return f"The attacks that ran took no records, as epsilon {size(epsilon)} leads to expect."


def not_covered(what: str) -> str:
    """What the guarantee does not cover."""
    return f"The guarantee does not cover this: {what}."


def guard_title(names: int, cheapest: int | None, fidelity: float) -> str:
    """The title of the study of guards."""
    if cheapest is None:
        return f"Without any guard no copy reached {percent(fidelity)} agreement"
    stopped = (
        f"{count(names, 'guard')} kept some attack below {percent(fidelity)} agreement"
        if names
        else f"No guard tried was shown to keep copies below {percent(fidelity)} agreement"
    )
    return f"{stopped}; without one, {count(cheapest, 'row')} sufficed for a copy"


def guard_meaning(cheapest: int | None, attack: str, fidelity: float) -> str:
    """What an unguarded endpoint gives."""
    if cheapest is None:
        return f"No attack tried here had a copy of {percent(fidelity)} agreement within the rows that it asked."
    return (
        f"Without a guard the {attack} had a copy of {percent(fidelity)} agreement after {count(cheapest, 'row')}. No "
        "practical limit on the queries of a client is below that, so a limit alone is not offered as protection."
    )


def guard_certainty(judges: int) -> str:
    """What was checked of the guards."""
    return (
        f"Each attack was run once behind each guard and judged on up to {count(judges, 'input')} that it had not "
        "asked about. A client who asks more, or knows more, may do better."
    )


def guard_remedy(guard: str, before: float, after: float, rows: int, price: float, others: str) -> str:
    """A guard that kept an attack from its copy, with its price."""
    agreed = (
        f"this attack agreed in {percent(after)} instead of {percent(before)} ({count(rows, 'row')})"
        if rows
        else "this attack gets no answer that it can use"
    )
    said = f"Guard {guard}: {agreed}, and {percent(price)} of honest decisions change (measured here, one run)."
    return f"{said} {others}" if others else said


def guard_fails(guard: str, attack: str, rows: int, score: float, price: float) -> str:
    """A guard behind which an attack still has its copy."""
    return (
        f"Guard {guard} is not enough: the {attack} ({count(rows, 'row')}) agrees in {percent(score)}, and "
        f"{percent(price)} of honest decisions change (measured here)."
    )


def guard_holds(guard: str, attack: str, rows: int, score: float, price: float) -> str:
    """A guard behind which no attack that was tried has its copy."""
    return (
        f"Guard {guard}: the best attack ({attack}, {count(rows, 'row')}) agrees in {percent(score)}, and "
        f"{percent(price)} of honest decisions change (measured here)."
    )


def guard_open(guard: str, attack: str, rows: int, score: float, price: float) -> str:
    """A guard of which the study cannot say whether it keeps every attack from its copy."""
    return (
        f"Guard {guard} is not settled: the best attack that ran ({attack}, {count(rows, 'row')}) agrees in "
        f"{percent(score)}, but not every attack ran, or too few rows judged them. {percent(price)} of honest "
        "decisions change (measured here)."
    )


def averages_out(guard: str, single: float, averaged: float) -> str:
    """A guard whose noise a client removes by repeating a query."""
    return (
        f"Guard {guard} averages out: one answer is off by {percent(single)} of the answers' spread, the mean of "
        f"repeated answers by {percent(averaged)}. With {guard}:fixed an input always gets the same noise."
    )


def averages_out_nearby(guard: str, single: float, nearby: float) -> str:
    """A guard whose noise a client removes by asking inputs that are nearly the same."""
    return (
        f"Guard {guard} averages out over inputs that are nearly the same: one answer is off by {percent(single)} of "
        f"the answers' spread, the mean over such inputs by {percent(nearby)}."
    )


def one_answer(common: float) -> str:
    """Why guards cannot be judged by agreement."""
    return f"{percent(common)} of the decisions are the same, so agreement does not tell a copy from none."
