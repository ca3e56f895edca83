"""Real models, written only with atbfn's public operators, as a researcher would write them.

`llama` is a decoder with its loader, `bert` an encoder with its loader, `generation` the generation loop;
`tokenizer` and `weights` read GGUF and safetensors files, which needs `pip install "atbfn[models]"`.
"""

from atbfn.models import bert, llama
from atbfn.models.extras import minilm, smollm2
from atbfn.models.generation import Sampling, generate, stream
from atbfn.models.tokenizer import Tokenizer, load_tokenizer
from atbfn.models.weights import WeightError, open_checkpoint

__all__ = [
    "Sampling",
    "Tokenizer",
    "WeightError",
    "bert",
    "generate",
    "llama",
    "load_tokenizer",
    "minilm",
    "open_checkpoint",
    "smollm2",
    "stream",
]
