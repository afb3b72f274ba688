"""KServe's SDK in front of the engine: our models and their repository as it knows them."""
