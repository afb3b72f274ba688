"""The network of the text classifier."""

from torch import Tensor, nn


class BagOfWords(nn.Module):
    """The mean of the words' and word pairs' embeddings, and one linear layer.

    The layer named ``embedding`` is what explanations attribute to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(1_000, 24)
        self.linear = nn.Linear(24, 4)

    def forward(self, words: Tensor, starts: Tensor) -> Tensor:
        """Score texts.

        Args:
            words: int64 ``[words of all texts]``, numbers of the vocabulary.
            starts: int64 ``[n]``, where each text begins.

        Returns:
            float32 ``[n, 4]``, unnormalised.
        """
        return self.linear(self.embedding(words, starts))
