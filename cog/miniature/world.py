"""The images of the miniature: textured shapes of WordNet concepts, with traits inherited along hypernyms.

So that every data set is equally hard by itself, the seen concepts and the five levels are trees of the same
shape: two groups of three families with four siblings each (without hyponyms and other hypernyms).
"""

import multiprocessing
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from cog import constants
from cog.errors import CogError
from cog.levels.wordnet import NounGraph
from cog.runtime import files
from cog.runtime.memory import n_processors

IN1K_DIR, IN21K_DIR, RECORD = "in1k", "in21k", "world.json"

#: Families with seen and unseen members: boat, sailing vessel, ship; scarf, skirt, trouser.
SEEN_FAMILIES = ("n02858304", "n04128837", "n04194289", "n04143897", "n04230808", "n04489008")

#: Families with unseen members only, from relatives of the seen families to other kingdoms.
UNSEEN_FAMILIES = (
    *("n02834778", "n02959942", "n04543158"),  # wheeled vehicles: bicycle, railway car, wagon
    *("n02954340", "n03497657", "n03513137"),  # headdresses: cap, hat, helmet
    *("n02764044", "n03020692", "n03623556"),  # edge tools: ax, chisel, knife
    *("n02828884", "n03001627", "n04326896"),  # seats: bench, chair, stool
    *("n03542333", "n04081281", "n04233124"),  # buildings: hotel, restaurant, skyscraper
    *("n03625355", "n03631177", "n03819595"),  # fabrics: knit, lace, net
    *("n01727646", "n01745125", "n01752165"),  # snakes: colubrid, elapid, viper
    *("n11608250", "n11624531", "n11630017"),  # conifers: pine, spruce, cedar
)

#: Numbers of a concept that determine its appearance; standard normal over all concepts.
TRAITS = (
    *("hue_a", "hue_b", "ink_a", "ink_b", "value", "elongation", "lobes", "depth", "squareness", "frequency"),
    *("angle", "cross", "contrast", "rings", "rim", "core", "place", "taper", "bend"),
    *("sky_a", "sky_b", "glow_a", "glow_b"),
)

#: Share of a trait that changes from a hypernym to its hyponym; deviation of an image from its concept.
CHANGE, INDIVIDUAL = 0.4, 0.25

SIZE, _CHUNK = 64, 25  # pixels; images that are drawn at once, whose arrays stay in the processor's cache


def choose_concepts(graph: NounGraph, seed: int) -> tuple[list[str], list[str]]:
    """Return the wnids of 24 seen and 120 unseen concepts, each ascending; the seed chooses the siblings."""
    seen, unseen = list[str](), list[str]()
    inner = {parent for parents in graph.parents for parent in parents}
    for family in (*SEEN_FAMILIES, *UNSEEN_FAMILIES):
        only = (graph.node[family],)
        members = [
            graph.wnids[n] for n, above in enumerate(graph.parents) if above == only and n not in inner
        ]
        order = np.random.default_rng([seed, int(family[1:])]).permutation(len(members))
        taken = [members[k] for k in order]
        if family in SEEN_FAMILIES:
            seen, taken = seen + taken[:4], taken[4:]
        unseen += taken[:4]
    return sorted(seen), sorted(unseen)


def concept_traits(graph: NounGraph, wnid: str, seed: int) -> np.ndarray:
    """Return the traits of a concept, float64 ``(len(TRAITS),)``: a stationary walk along hypernyms.

    The step to a synset depends on the seed and its id: concepts share the steps of common hypernyms.
    """
    chain, z = [graph.node[wnid]], np.zeros(len(TRAITS))
    while graph.parents[chain[-1]]:
        chain.append(graph.parents[chain[-1]][0])
    for depth, node in enumerate(reversed(chain)):
        step = np.random.default_rng([seed, int(graph.wnids[node][1:])]).standard_normal(len(TRAITS))
        z = np.sqrt(1 - CHANGE**2) * z + CHANGE * step if depth else step
    return z


def draw(traits: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return the first ``n`` of ``_CHUNK`` images of one concept, uint8 ``(n, SIZE, SIZE, 3)``."""
    spread = np.array([0.7 if name.startswith("sky") else INDIVIDUAL for name in TRAITS])
    each = (traits + rng.standard_normal((_CHUNK, len(TRAITS))) * spread).astype(np.float32)[:n]
    t = {name: each[:, k, None, None] for k, name in enumerate(TRAITS)}

    def within(name: str, low: float, high: float) -> np.ndarray:
        return low + (high - low) / (1 + np.exp(-1.702 * t[name]))

    def uniform(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, (_CHUNK, 1, 1)).astype(np.float32)[:n]

    channels = np.array([0.0, 2.094, 4.189], np.float32)[:, None, None]  # before the rows: long inner loops

    def color(name: str, value: np.ndarray) -> np.ndarray:
        hue = np.arctan2(t[f"{name}_a"], t[f"{name}_b"])[:, None] - channels
        return value[:, None] * (0.55 + 0.45 * np.cos(hue))

    axis = ((np.arange(SIZE) + 0.5) / SIZE * 2 - 1).astype(np.float32)
    x, y = axis[None, None, :] - uniform(-0.25, 0.25), axis[None, :, None] - uniform(-0.25, 0.25)
    turn, scale, flip = uniform(-0.5, 0.5), uniform(0.55, 0.85), np.sign(uniform(-1, 1))
    u = (np.cos(turn) * x + np.sin(turn) * y) / scale * flip
    v = (np.cos(turn) * y - np.sin(turn) * x) / scale / within("elongation", 0.4, 1.0)
    v = (v + within("bend", -0.6, 0.6) * (u * u - 0.3)) / np.clip(
        1 + within("taper", -0.6, 0.6) * u, 0.3, 1.7
    )
    theta, power = np.arctan2(v, u), np.exp(within("squareness", 0.3, 2.0))
    radius = (np.abs(u) ** power + np.abs(v) ** power + 1e-6) ** (1 / power)
    lobes = np.round(2 + 4 / (1 + np.exp(-1.702 * traits[TRAITS.index("lobes")])))  # the same for all images
    inside = 0.8 * (1 + within("depth", 0, 0.4) * np.cos(np.float32(lobes) * theta)) - radius
    wave = 2 * np.pi * np.exp(within("frequency", 0.0, 1.4))
    angle, phase = within("angle", -0.3, 3.4), uniform(0, 6.28)
    a, b = np.cos(angle) * u + np.sin(angle) * v, np.cos(angle) * v - np.sin(angle) * u
    rings = within("rings", 0, 1)
    stripes = np.sin(wave * a + phase) + within("cross", 0, 1) * np.sin(wave * b + phase)
    pattern = (1 - rings) * stripes + rings * 1.5 * np.sin(wave * radius + phase)
    mark = within("contrast", 0.3, 1.0) / (1 + np.exp(-4 * pattern))
    mark = np.where(inside < 0.2 * within("rim", -1, 1), 1.0, mark)[:, None]
    body, ink = color("hue", within("value", 0.4, 1.0)), color("ink", 1.1 - within("value", 0.4, 1.0))
    core = (np.hypot(u - within("place", -0.5, 0.5), v) < within("core", -0.3, 0.5))[:, None]
    surface = np.where(core, color("glow", uniform(0.8, 1.0)), body + mark * (ink - body))
    shade = 1 + 0.4 * x * uniform(-1, 1) + 0.3 * np.sin(uniform(2, 12) * y + phase)
    back = color("sky", uniform(0.3, 0.9) * shade)
    image = back + (surface - back) / (1 + np.exp(np.clip(-30 * inside, -50, 50)))[:, None]
    image = np.moveaxis(image * uniform(0.7, 1.15)[:, None], 1, -1)
    image = image + 0.03 * rng.standard_normal(image.shape, np.float32)
    return (np.clip(image, 0, 1) * 255).astype(np.uint8)


def concept_images(wnid: str, traits: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Return the first ``n`` images of a concept, uint8 ``(n, SIZE, SIZE, 3)``, whatever ``n`` is."""
    rngs = [np.random.default_rng([seed, int(wnid[1:]), chunk]) for chunk in range(-(-n // _CHUNK))]
    return np.concatenate([draw(traits, min(_CHUNK, n - k * _CHUNK), rng) for k, rng in enumerate(rngs)])


def make_world(folder: Path, graph: NounGraph, *, seed: int = 0, n_train: int = 80, n_test: int = 50) -> None:
    """Draw the images of a world, unless the folder holds it; other images there are a CogError."""
    settings = {"seed": seed, "n_train": n_train, "n_test": n_test}
    record, begun, roots = folder / RECORD, folder / ".drawing", (folder / IN1K_DIR, folder / IN21K_DIR)
    if record.exists() and files.read_object(record) == settings:
        return
    if any(root.exists() for root in roots) and (record.exists() or not begun.exists()):
        found = "a miniature made with other settings, or other images"
        raise CogError(f"{folder} holds {found}, expected {settings}; give another --output_dir or delete it")
    folder.mkdir(parents=True, exist_ok=True)
    begun.touch()
    for root in roots:
        shutil.rmtree(root, ignore_errors=True)  # of an interrupted call
    seen, unseen = choose_concepts(graph, seed)
    n = n_train + n_test
    train, val = (roots[0] / constants.IN1K_FOLDERS[split] for split in constants.SPLITS)
    jobs: list[tuple] = [
        (w, concept_traits(graph, w, seed), seed, ((train, 0, n_train), (val, n_train, n))) for w in seen
    ]
    jobs += [(w, concept_traits(graph, w, seed), seed, ((roots[1], 0, n),)) for w in unseen]
    # Spawned, because forking a process with threads (a test runner, a notebook) can hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_processors(), mp_context=context) as pool:
        for future in [pool.submit(_write, *job) for job in jobs]:
            future.result()
    files.write_text(folder / "seen_wnids.txt", "".join(f"{wnid}\n" for wnid in seen))
    rows = "".join(f"{wnid},{n}\n" for wnid in sorted(seen + unseen))
    files.write_text(folder / "image_counts.csv", f"wnid,count\n{rows}")
    files.write_json(record, settings)
    begun.unlink()


def _write(wnid: str, traits: np.ndarray, seed: int, parts: Sequence[tuple[Path, int, int]]) -> None:
    pictures = concept_images(wnid, traits, max(stop for *_, stop in parts), seed)
    for folder, first, stop in parts:
        (folder / wnid).mkdir(parents=True)
        for k in range(first, stop):
            Image.fromarray(pictures[k]).save(folder / wnid / f"{wnid}_{k}.JPEG", quality=75 + k * 7 % 20)


def write_overview(folder: Path, graph: NounGraph, levels: Sequence[Sequence[str]]) -> None:
    """Write ``overview.png``: two images of every concept with its name, a row per data set."""
    rows = [((folder / "seen_wnids.txt").read_text().split(), folder / IN1K_DIR / "train")]
    rows += [(list(level), folder / IN21K_DIR) for level in levels]
    height = 2 * SIZE + 16
    sheet = Image.new("RGB", (SIZE * max(len(wnids) for wnids, _ in rows), height * len(rows)), "white")
    for top, (wnids, images) in zip(range(0, sheet.height, height), rows, strict=True):
        for column, wnid in enumerate(sorted(wnids, key=lambda wnid: [*graph.parents[graph.node[wnid]]])):
            caption = Image.new("RGB", (SIZE - 2, 14), "white")  # which cuts a long name at its edge
            ImageDraw.Draw(caption).text((1, 1), graph.words(wnid).split(",")[0], fill="black")
            sheet.paste(caption, (column * SIZE, top + 2))
            for k in range(2):
                with Image.open(images / wnid / f"{wnid}_{k}.JPEG") as picture:
                    sheet.paste(picture, (column * SIZE, top + 16 + k * SIZE))
    with files.atomic_write(folder / "overview.png") as handle:
        sheet.save(handle, format="PNG")
