"""Intervals for what was measured a few times."""
import random
import statistics

RESAMPLES = 2000


def median_ratio_interval(theirs, ours, resamples=RESAMPLES):
    """(ratio of the medians, lower and upper end of its 95 % interval) by bootstrap: both are drawn anew, with
    replacement. The same samples give the same interval."""
    ratio = statistics.median(theirs) / statistics.median(ours)
    if len(theirs) < 2 or len(ours) < 2:
        return ratio, 0.0, float("inf")
    draw = random.Random(1)
    ratios = sorted(statistics.median(draw.choices(theirs, k=len(theirs))) /
                    statistics.median(draw.choices(ours, k=len(ours))) for _ in range(resamples))
    return ratio, ratios[int(0.025 * resamples)], ratios[int(0.975 * resamples) - 1]


def median_interval(samples):
    """(median, lower and upper end of its 95 % interval) by bootstrap. The same samples give the same interval."""
    return median_ratio_interval(samples, [1.0, 1.0])
