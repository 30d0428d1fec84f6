"""Other systems that merge, side by side with stream_merge: the same batches, and the cost beside a plain append."""
