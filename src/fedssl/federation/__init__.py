"""The paper's three operations (local training, model communication, model aggregation) and the round around them."""
