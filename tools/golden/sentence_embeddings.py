#!/usr/bin/env python3
"""What sentence-transformers makes of folders: prints a JSON object, by folder the embeddings of each text in float32, or why there
are none. Run in .venv-models (tools/requirements-models.txt): sentence_embeddings.py TEXTS.json FOLDER..."""

import json
import sys
import warnings

import torch
from sentence_transformers import SentenceTransformer


def embeddings_of(folder, texts):
    try:
        model = SentenceTransformer(folder, device="cpu", local_files_only=True, model_kwargs={"dtype": torch.float32})
        return [row.tolist() for row in model.encode(texts, batch_size=1, show_progress_bar=False)]
    except Exception as error:  # whatever it is: that folder has no embeddings
        return f"{type(error).__name__}: {error}"


def main():
    warnings.simplefilter("ignore")
    with open(sys.argv[1], encoding="utf8") as file:
        texts = json.load(file)
    json.dump({folder: embeddings_of(folder, texts) for folder in sys.argv[2:]}, sys.stdout)


if __name__ == "__main__":
    main()
