"""``ts.torch_handler.distributed``: handlers for models that are spread over several processes."""
