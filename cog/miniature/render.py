"""Rendering of a concept's images from its traits in numpy, many images at once."""

from __future__ import annotations

import numpy as np

from cog.miniature.traits import TRAITS

#: Side of an image in pixels. At 64 the finest pattern still has 3 pixels per period on a body of half the image,
#: and drawing, decoding and training of the whole world take only the minutes of a quick start.
SIZE = 64

#: Standard deviation of each trait over the images of one concept, in units of that over all concepts.
#: Siblings differ by 0.57, so a single trait does not distinguish them.
INDIVIDUAL = 0.25
#: Standard deviation of the traits of the habitat, which is less typical of a concept.
INDIVIDUAL_HABITAT = 0.7

#: Number of bodies of no concept that are drawn behind the subject.
N_STRANGERS = 2

_HABITAT = ("sky_hue_a", "sky_hue_b", "ground_hue_a", "ground_hue_b", "horizon", "ground_frequency")
#: Traits that become whole numbers, which are the same in all images of a concept.
_WHOLE = ("lobe_number", "limb_number", "copies", "arrangement")
_PATTERNS = ("plain", "stripes", "checks", "spots", "rings", "mottle")
_REACH = 1.9  # largest distance of an outline from the body's center, in units of the body's size
_GOLDEN_ANGLE = 2.399963  # radians between successive bodies of a heap; multiples of it never coincide

_Traits = dict[str, np.ndarray]


def draw(traits: np.ndarray, n_images: int, rng: np.random.Generator) -> np.ndarray:
    """Draw images of one concept.

    Args:
        traits: standard normal traits of the concept, (len(TRAITS),).
        n_images: number of images.
        rng: random generator of all differences among the images.

    Returns:
        RGB images, uint8 (n_images, SIZE, SIZE, 3).
    """
    return _Scene(n_images, rng).images(traits)


def _logistic(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.clip(x, -60, 60)))


def _scale(z: np.ndarray, low: float, high: float) -> np.ndarray:
    """Map standard normal ``z`` to (low, high); with 1.702 the logistic is close to the normal distribution."""
    return low + (high - low) * _logistic(1.702 * z)


def _hue(traits: _Traits, part: str, saturation: np.ndarray | float, value: np.ndarray) -> np.ndarray:
    """Return the RGB colors (n, 3) of a part; ``saturation`` and ``value`` are in [0, 1]."""
    hue = np.arctan2(traits[f"{part}_hue_a"], traits[f"{part}_hue_b"])
    channels = 0.5 + 0.5 * np.cos(hue[:, None] - np.array([0.0, 2.0944, 4.1888], np.float32))
    saturation = np.broadcast_to(np.asarray(saturation, np.float32), hue.shape)
    return value[:, None] * (1 - saturation[:, None] * (1 - channels))


class _Scene:
    """The state of n images while they are drawn.

    Numbers per image have shape (n,); the canvas is float32 (n, SIZE, SIZE, 3).
    """

    def __init__(self, n_images: int, rng: np.random.Generator) -> None:
        self.n = n_images
        self.rng = rng
        self.axis = ((np.arange(SIZE, dtype=np.float32) + 0.5) / SIZE) * 2 - 1  # coordinates from -1 to 1
        self.canvas = np.zeros((n_images, SIZE, SIZE, 3), np.float32)

    def images(self, traits: np.ndarray) -> np.ndarray:
        concept = self.individuals(traits)
        self.background(concept)
        for _ in range(N_STRANGERS):
            self.body(
                self.individuals(None), self.uniform(-0.9, 0.9), self.uniform(-0.9, 0.9),
                self.uniform(0.25, 0.45), self.uniform(-0.6, 0.6), np.sign(self.uniform(-1, 1)),
            )  # fmt: skip
        self.subjects(concept)
        return self.camera()

    def uniform(self, low: float, high: float) -> np.ndarray:
        return self.rng.uniform(low, high, self.n).astype(np.float32)

    def individuals(self, traits: np.ndarray | None) -> _Traits:
        """Return traits for each image: variations of a concept's traits, or random traits of no concept."""
        table = self.rng.standard_normal((self.n, len(TRAITS)), dtype=np.float32)
        if traits is not None:
            table *= np.array(
                [INDIVIDUAL_HABITAT if name in _HABITAT else INDIVIDUAL for name in TRAITS], np.float32
            )
            for name in _WHOLE:
                table[:, TRAITS.index(name)] = 0
            table += traits.astype(np.float32)
        return {name: table[:, k] for k, name in enumerate(TRAITS)}

    def background(self, traits: _Traits) -> None:
        """Draw a habitat of two tones, with a soft horizon and a pattern on the ground."""
        column = (slice(None), None, None)
        x, y = self.axis[None, None, :], self.axis[None, :, None]
        sky = _hue(traits, "sky", 0.35, self.uniform(0.6, 1.0))[:, None, None, :]
        ground = _hue(traits, "ground", 0.5, self.uniform(0.3, 0.8))[:, None, None, :]
        height = _scale(traits["horizon"], -0.6, 0.8)[column]
        share = _logistic((y - height - self.uniform(-0.3, 0.3)[column] * x) * self.uniform(5, 30)[column])
        frequency = _scale(traits["ground_frequency"], 2, 14)[column]
        angle = self.uniform(0, 2 * np.pi)
        across = np.cos(angle)[column] * x + np.sin(angle)[column] * y
        wave = np.sin(frequency * across + self.uniform(0, 6.3)[column])
        wave = wave * np.sin(0.7 * frequency * (y - x * np.sin(angle)[column]) + self.uniform(0, 6.3)[column])
        share = share[..., None]
        self.canvas = (sky * (1 - share) + ground * share * (1 + 0.25 * wave[..., None])).astype(np.float32)

    def subjects(self, traits: _Traits) -> None:
        """Draw one body (for half of the concepts), or two to four bodies in a row, a ring or a heap."""
        share = float(_logistic(1.702 * traits["copies"][:1])[0])
        copies = max(1, min(4, int(share * 6) - 1))
        arrangement = int(_scale(traits["arrangement"][:1], 0, 3)[0])
        spread = _scale(traits["spread"], 0.35, 0.6)
        size = self.uniform(0.5, 0.75) / (1 + 0.25 * (copies - 1))
        center_x, center_y = self.uniform(-0.25, 0.25), self.uniform(-0.25, 0.25)
        turn, flip = self.uniform(-0.45, 0.45), np.sign(self.uniform(-1, 1))
        for copy in range(copies):
            angle = 0.0
            distance: np.ndarray = np.zeros(self.n, np.float32)
            if copies > 1 and arrangement == 0:
                distance = 1.2 * spread * (copy - (copies - 1) / 2)
            elif copies > 1 and arrangement == 1:
                angle, distance = 2 * np.pi * copy / copies, spread
            elif copies > 1:
                angle, distance = _GOLDEN_ANGLE * copy, spread * np.sqrt(copy / 2)
            self.body(
                traits,
                center_x + flip * distance * np.cos(angle) + self.uniform(-0.05, 0.05),
                center_y + distance * np.sin(angle) + self.uniform(-0.05, 0.05),
                size * self.uniform(0.9, 1.1), turn + self.uniform(-0.15, 0.15), flip,
            )  # fmt: skip

    def body(
        self, traits: _Traits, center_x: np.ndarray, center_y: np.ndarray, size: np.ndarray, turn: np.ndarray,
        flip: np.ndarray,
    ) -> None:  # fmt: skip
        """Draw one body on each image, with outline, surface and light."""
        # A view from the side; light from the left or the right.
        squeeze, light = self.uniform(0.8, 1.0), self.uniform(-1, 1)
        phase = self.uniform(0, 2 * np.pi)
        dx = (self.axis[None, None, :] - center_x[:, None, None]) / size[:, None, None]
        dy = (self.axis[None, :, None] - center_y[:, None, None]) / size[:, None, None]
        # The rest is computed only for the pixels within reach of the body, as one flat list.
        image, row, column = np.nonzero(dx * dx + dy * dy < _REACH**2)
        dx = dx[image, 0, column] * flip[image]
        dy = dy[image, row, 0]
        u = (np.cos(turn)[image] * dx + np.sin(turn)[image] * dy) / squeeze[image]
        v = np.cos(turn)[image] * dy - np.sin(turn)[image] * dx

        inside = self.outline(traits, image, u, v)
        near = inside > -5 / (30 * size[image])
        image, row, column, u, v, inside = (a[near] for a in (image, row, column, u, v, inside))
        cover = _logistic(inside * size[image] * 30)  # an edge of about one pixel
        surface = self.surface(traits, phase, image, u, v, inside)
        # Light from above on a bulging body, and a highlight on glossy ones.
        shade = 0.75 + 0.3 * np.sqrt(np.clip(inside / 0.75, 0, 1)) - 0.18 * (v + light[image] * u)
        gloss = np.maximum(_scale(traits["gloss"], -0.5, 0.8), 0)[image]
        highlight = gloss * np.exp(-14 * ((u + 0.3 * light[image]) ** 2 + (v + 0.35) ** 2))
        surface = surface * shade[:, None] + highlight[:, None]
        below = self.canvas[image, row, column]
        self.canvas[image, row, column] = below + cover[:, None] * (surface - below)

    def outline(self, traits: _Traits, image: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return the depth of points inside the body's outline (negative outside), in units of the body's size."""
        v = v + _scale(traits["bend"], -0.6, 0.6)[image] * (u * u - 0.3)
        v = v / _scale(traits["elongation"], 0.35, 1.0)[image]
        v = v / np.clip(1 + _scale(traits["taper"], -0.6, 0.6)[image] * u, 0.3, 1.7)
        radius = np.sqrt(u * u + v * v) + 1e-6
        # A superellipse: a rhombus, a disc, nearly a square, or a shape in between ...
        power = np.exp(_scale(traits["squareness"], 0.35, 2.0))[image]
        edge = 0.75 * ((np.abs(u) / radius) ** power + (np.abs(v) / radius) ** power + 1e-6) ** (-1 / power)
        # ... with lobes, and with limbs that stick out.
        theta = np.arctan2(v, u)
        lobes = np.floor(_scale(traits["lobe_number"], 2, 9))[image]
        edge = edge * (1 + _scale(traits["lobe_depth"], -0.05, 0.3)[image] * np.cos(lobes * theta))
        limbs = np.floor(_scale(traits["limb_number"], 0, 8))
        sharpness = 4 * _scale(traits["limb_width"], 3, 40) / np.maximum(limbs, 1) ** 1.5
        length = _scale(traits["limb_length"], 0.0, 0.7) * (limbs > 0)
        limb = np.exp(sharpness[image] * (np.cos(limbs[image] * theta + 1.57) - 1))
        return edge + length[image] * limb - radius

    def surface(
        self,
        traits: _Traits,
        phase: np.ndarray,
        image: np.ndarray,
        u: np.ndarray,
        v: np.ndarray,
        inside: np.ndarray,
    ) -> np.ndarray:
        """Return the colors (pixels, 3) of points of the body, with pattern, rim and core."""

        def color(part: str, darkest: float) -> np.ndarray:
            value = _scale(traits[f"{part}_value"], darkest, 1.0)
            return _hue(traits, part, _scale(traits[f"{part}_saturation"], 0.1, 0.9), value)

        body, mark = color("body", 0.3), color("mark", 0.1)
        core = _hue(traits, "core", 0.7, _scale(traits["mark_value"], 0.9, 0.3))
        share = (
            self.pattern(traits, phase, image, u, v) * _scale(traits["pattern_contrast"], 0.35, 1.0)[image]
        )
        surface = body[image] + share[:, None] * (mark - body)[image]
        rim = _scale(traits["rim"], -0.15, 0.25)  # negative: no rim
        at_rim = _logistic((rim[image] - inside) * 30) * (rim > 0)[image]
        surface = surface + at_rim[:, None] * (0.7 * mark[image] - surface)
        core_size = _scale(traits["core_size"], -0.35, 0.5)  # negative: no core
        from_core = np.sqrt((u - _scale(traits["core_place"], -0.5, 0.5)[image]) ** 2 + v * v)
        in_core = _logistic((core_size[image] - from_core) * 25) * (core_size > 0.05)[image]
        return surface + in_core[:, None] * (core[image] - surface)

    def pattern(
        self, traits: _Traits, phase: np.ndarray, image: np.ndarray, u: np.ndarray, v: np.ndarray
    ) -> np.ndarray:
        """Return the share of the marking color in [0, 1], a mixture of six families of which one usually dominates."""
        weights = np.exp(3 * np.stack([traits[name] for name in _PATTERNS]))
        weights = (weights / weights.sum(axis=0))[:, image]
        first = 2 * np.pi * np.exp(_scale(traits["pattern_frequency"], 0.0, 1.4))
        second = first * _scale(traits["pattern_ratio"], 0.5, 1.1)
        first, second, shift = first[image], second[image], phase[image]
        angle = _scale(traits["pattern_angle"], -0.3, 3.4)
        cos, sin = np.cos(angle)[image], np.sin(angle)[image]
        a, b = cos * u + sin * v, cos * v - sin * u
        wave_a, wave_b = np.sin(first * a + shift), np.sin(second * b + shift)
        level = _scale(traits["pattern_level"], -0.7, 0.7)[image]
        families = (
            np.full_like(u, -0.5),
            wave_a,
            2 * wave_a * wave_b,
            wave_a + wave_b - 0.7,
            np.sin(first * np.sqrt(u * u + v * v) + shift),
            1.5 * np.sin(first * a + 2 * wave_b) * np.sin(second * b + 2 * wave_a),
        )
        return sum(
            weight * _logistic(4 * (family + level)) for weight, family in zip(weights, families, strict=True)
        )

    def camera(self) -> np.ndarray:
        """Apply exposure, color cast and sensor noise, and return 8-bit images."""
        cast = self.rng.uniform(0.85, 1.15, (self.n, 3)).astype(np.float32) * self.uniform(0.7, 1.15)[:, None]
        picture = np.clip(self.canvas, 0, 1.2) * cast[:, None, None, :]
        noise = self.rng.standard_normal(picture.shape, dtype=np.float32)
        picture += noise * self.uniform(0.01, 0.035)[:, None, None, None]
        return (np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8)
