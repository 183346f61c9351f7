"""Every sentence that a probe puts into a report, as a function of the numbers in it: one file for each question.

A sentence must read well for every number, also for zero, one, infinity and no number at all.
"""
