"""``ts.torch_handler``: the stock handlers under the names that archives import."""
