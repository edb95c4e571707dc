"""Intervals over concepts and seeds: oracles, degenerate counts, coverage and false verdicts."""

import itertools
from array import array

import numpy as np
import pytest
import scipy
from marks import first_quick

from cog.results import uncertainty
from cog.results.concept_counts import ConceptCounts


def runs(correct, images=50):
    """Runs of (S, C) right answers."""
    images = images if isinstance(images, int) else array("I", images)
    return [ConceptCounts(array("I", map(int, row)), images) for row in correct]


def accuracies(generator, n_concepts, *, mean=1.0, spread=1.2):
    """True accuracies of concepts, by a normal distribution on the logit scale."""
    return 1 / (1 + np.exp(-generator.normal(mean, spread, n_concepts)))


def test_one_seed_is_students_t_over_concepts_with_two_more_images():
    generator = np.random.default_rng(0)
    one, other = generator.binomial(50, 0.7, (2, 40))
    found = uncertainty.difference(runs([one]), runs([other]))
    differences = 100 * (one - other) / 50
    assert found.mean == pytest.approx(differences.mean())
    error = np.sqrt(scipy.stats.sem(differences) ** 2 + 2 * (100 / 2000) ** 2)
    assert (found.low, found.high) == pytest.approx(scipy.stats.t.interval(0.95, 39, found.mean, error))
    assert found.p == pytest.approx(2 * scipy.stats.t.sf(abs(differences.mean()) / error, 39))


def test_the_parts_are_those_of_a_table_of_variances():
    """Against the sums of squares of the additive model, fitted by least squares."""
    generator = np.random.default_rng(2)
    x = generator.normal(size=(4, 7)) + generator.normal(size=7) + 3 * generator.normal(size=(4, 1))
    seeds, concepts = np.indices(x.shape).reshape(2, -1)
    full = np.hstack([np.eye(4)[seeds], np.eye(7)[concepts]])

    def residual(columns):
        fit = np.linalg.lstsq(columns, x.ravel(), rcond=None)[0]
        return float(((x.ravel() - columns @ fit) ** 2).sum())

    rest = residual(full) / 18
    of_seeds = (residual(np.eye(7)[concepts]) - residual(full)) / 3 / 7
    of_concepts = (residual(np.eye(4)[seeds]) - residual(full)) / 6 / 4
    assert uncertainty._parts(x) == pytest.approx((max(0, of_concepts / 7 - rest / 28), of_seeds / 4))


@pytest.mark.parametrize("shift", [0.002, 0.02, 0.1])
def test_p_value_and_interval_say_the_same(shift, monkeypatch):
    generator = np.random.default_rng(3)
    rates = accuracies(generator, 60)
    low, high = (generator.binomial(50, np.clip(rates + s, 0, 1), (5, 60)) for s in (0, shift))
    low = np.clip(low + generator.integers(-3, 4, (5, 1)), 0, 50)
    found = uncertainty.difference(runs(high), runs(low))
    assert found.p < 1
    assert (found.p < 0.05) == (found.low > 0 or found.high < 0)
    monkeypatch.setattr(uncertainty, "CONFIDENCE", 1 - found.p)
    at_p = uncertainty.difference(runs(high), runs(low))
    assert min(abs(at_p.low), abs(at_p.high)) < 1e-6


def test_wilsons_interval_where_concepts_do_not_differ():
    found = uncertainty.accuracy(runs([[40] * 30]))
    t = scipy.stats.t.ppf(0.975, 29)
    for end, between in ((found.low, (0, 0.8)), (found.high, (0.8, 1))):
        root = scipy.optimize.brentq(lambda q: (0.8 - q) ** 2 - t * t * q * (1 - q) / 1500, *between)
        assert end == pytest.approx(100 * root)


def test_concepts_of_different_sizes_are_a_ratio(monkeypatch):
    """Against the delete-one jackknife over concepts."""
    generator = np.random.default_rng(4)
    images = generator.integers(5, 300, 200)
    correct = generator.binomial(images, accuracies(generator, 200))
    monkeypatch.setattr(uncertainty, "CONFIDENCE", 0.6827)
    found = uncertainty.accuracy(runs([correct], images))
    without = [100 * np.delete(correct, k).sum() / np.delete(images, k).sum() for k in range(200)]
    error = np.sqrt(199 / 200 * ((without - np.mean(without)) ** 2).sum())
    assert (found.high - found.low) / 2 == pytest.approx(error, rel=0.02)
    assert found.mean == pytest.approx(100 * correct.sum() / images.sum())


def test_changes_at_the_ends_of_the_scale():
    def number(mean, low, high):
        return uncertainty.Estimate(mean, low, high)

    none = uncertainty.change(number(0, 0, 10), number(50, 40, 60))
    assert (none.mean, none.low) == (-100, -100) and -100 < none.high < -70
    # Twice the base's mean is its upper end: 0 / 0 in the equation as it is published.
    twice = uncertainty.change(number(60, 50, 70), number(50, 20, 100))
    near = uncertainty.change(number(60, 50, 70), number(50, 20, 99.999))
    assert twice.low == pytest.approx(near.low, abs=0.01) and twice.low < twice.mean < twice.high
    assert uncertainty.change(number(60, 50, 70), number(0, 0, 10)) is None


def test_holm_is_the_closed_test_of_bonferroni():
    """A hypothesis falls at a level where Bonferroni rejects every intersection of hypotheses that has it."""
    generator = np.random.default_rng(5)
    for n, _ in itertools.product((1, 2, 3, 5), range(20)):
        p = [*np.round(generator.uniform(0, 0.4, n), 2)]
        adjusted = uncertainty.holm(p)
        for index in range(n):
            sets = [s for k in range(1, n + 1) for s in itertools.combinations(range(n), k) if index in s]
            assert adjusted[index] == pytest.approx(max(min(1, len(s) * min(p[k] for k in s)) for s in sets))
    assert uncertainty.holm([]) == []


@pytest.mark.parametrize("n_concepts", [17, 1000])
def test_a_handful_of_images_is_as_telling_as_in_a_sign_test(n_concepts):
    """All of n images, on as many concepts, are in favor of one model."""
    for n in range(1, 12):
        one, other = np.full((2, n_concepts), 10)
        one[:n] += 1
        found = uncertainty.difference(runs([one] * 5, 16), runs([other] * 5, 16))
        exact = scipy.stats.binomtest(n, n).pvalue
        assert (found.p < 0.05) == (exact < 0.05), (n, found.p, exact)


@pytest.mark.parametrize("n_seeds", [1, 5])
@pytest.mark.parametrize("n_concepts", first_quick(1, [100, 20, 1000]))
def test_coverage_of_accuracies_and_of_their_changes(n_concepts, n_seeds):
    generator = np.random.default_rng(n_concepts + n_seeds)
    truth = [100 * accuracies(generator, 10**6, mean=mean).mean() for mean in (0.0, 1.5)]
    truth.append(100 * (truth[0] / truth[1] - 1))
    covered = []
    for _ in range(400):
        rates = [accuracies(generator, n_concepts, mean=mean) for mean in (0.0, 1.5)]
        found = [uncertainty.accuracy(runs(generator.binomial(50, p, (n_seeds, n_concepts)))) for p in rates]
        found.append(uncertainty.change(*found))
        covered.append([one.low <= true <= one.high for one, true in zip(found, truth)])
    *of_accuracies, of_changes = np.mean(covered, axis=0)
    assert 0.93 <= np.mean(of_accuracies) <= 0.98 and 0.93 <= of_changes <= 0.98


#: Standard deviations of the difference of two models, in points: over concepts, over seeds, of the rest.
SPREADS = {"all images": (8, 0.2, 4), "few shots": (10, 3, 10), "same model": (0, 0.3, 3)}


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("n_seeds", [2, 3, 5])
@pytest.mark.parametrize("n_concepts", first_quick(1, [1000, 100, 20]))
def test_five_thousand_studies_of_24_comparisons(n_concepts, n_seeds, spread):
    """Of equal models; the mean and the three variances of normal studies are drawn, and not every number."""
    generator = np.random.default_rng(17)
    concepts, seeds, rest = (std**2 for std in SPREADS[spread])
    degrees = n_concepts - 1, n_seeds - 1

    def variances(expected, degrees):
        return expected * generator.chisquare(degrees, (5000, 24)) / degrees

    of_concepts = variances(concepts + rest / n_seeds, n_concepts - 1)
    of_seeds = variances(seeds + rest / n_concepts, n_seeds - 1)
    of_rest = variances(rest, (n_seeds - 1) * (n_concepts - 1))
    std = np.sqrt(concepts / n_concepts + seeds / n_seeds + rest / n_concepts / n_seeds)
    means = generator.normal(0, std, (5000, 24))
    # As of differences of counts: the parts, and two images.
    of_concepts = np.maximum(0, of_concepts - of_rest / n_seeds) / n_concepts
    parts = of_concepts + 2 * (2 / n_concepts) ** 2, of_seeds / n_seeds
    covered = np.mean(means**2 <= uncertainty._half_squared(parts, degrees, 0.05))
    # The protocol has five seeds. Of fewer, or where the two images count, intervals are wider than need be.
    assert 0.949 <= covered <= {2: 0.99, 3: 0.98, 5: 0.98 if n_concepts == 20 else 0.97}[n_seeds]
    # Holm's correction calls one of them different when the smallest p-value is below 0.05 / 24.
    false = (means**2 > uncertainty._half_squared(parts, degrees, 0.05 / 24)).any(axis=1).mean()
    assert false <= 0.05 + 2 * (0.05 * 0.95 / 5000) ** 0.5
