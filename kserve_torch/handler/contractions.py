"""English contractions and what they stand for."""

from __future__ import annotations

_ENDINGS = {
    "d": "would",
    "d've": "would have",
    "ll": "will",
    "ll've": "will have",
    "m": "am",
    "re": "are",
    "s": "is",
    "ve": "have",
}
_WORDS = {
    "I": "d d've ll ll've m ve",
    "could": "ve",
    "he": "d d've ll ll've s",
    "how": "ll s",
    "i": "d d've ll ll've m ve",
    "it": "d d've ll ll've s",
    "might": "ve",
    "must": "ve",
    "she": "d d've ll ll've s",
    "should": "ve",
    "so": "ve",
    "that": "d d've s",
    "there": "d d've s",
    "they": "d d've ll ll've re ve",
    "to": "ve",
    "we": "d d've ll ll've re ve",
    "what": "ll ll've re s ve",
    "when": "s ve",
    "where": "s ve",
    "who": "ll ll've s ve",
    "why": "s ve",
    "will": "ve",
    "would": "ve",
    "you": "d d've ll ll've re ve",
}
_NEGATED = "are could did does do had has have is may might must need ought should was were would"
_NEGATED_HAVE = "could had might must need ought should would"
_IRREGULAR = {
    "'cause": "because",
    "ain't": "is not",
    "can't": "cannot",
    "can't've": "cannot have",
    "how'd": "how did",
    "how'd'y": "how do you",
    "let's": "let us",
    "ma'am": "madam",
    "o'clock": "of the clock",
    "sha'n't": "shall not",
    "shan't": "shall not",
    "shan't've": "shall not have",
    "so's": "so as",
    "where'd": "where did",
    "won't": "will not",
    "won't've": "will not have",
    "y'all": "you all",
    "y'all'd": "you all would",
    "y'all'd've": "you all would have",
    "y'all're": "you all are",
    "y'all've": "you all have",
}

#: Contraction -> its words. Sorted, so that a pattern of the keys finds ``he'd`` before
#: ``he'd've``, as TorchServe's does.
CONTRACTION_MAP: dict[str, str] = dict(
    sorted(
        {
            **{f"{verb}n't": f"{verb} not" for verb in _NEGATED.split()},
            **{f"{verb}n't've": f"{verb} not have" for verb in _NEGATED_HAVE.split()},
            **{
                f"{word}'{ending}": f"{word} {_ENDINGS[ending]}"
                for word, endings in _WORDS.items()
                for ending in endings.split()
            },
            **_IRREGULAR,
        }.items()
    )
)
