"""The fine-tuning control (paper, supplement C.2, Fig. 6): a network trained with a classifier."""
