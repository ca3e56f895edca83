"""Real models, written only with atbfn's public operators, as a researcher would write them.

`llama` is a decoder with its loader, `bert` an encoder with its loader, `generation` the generation loop;
`tokenizer` and `weights` read GGUF and safetensors files, which needs `pip install "atbfn[models]"`.

    model, tokenizer = llama.load(smollm2()), load_tokenizer(smollm2())
    ids = tokenizer.chat([{"role": "user", "content": "Why is the sky blue?"}])
    sampling = Sampling(eos=tokenizer.eos_ids)
    (answer,) = generate(model.params, model.config, [ids], max_new_tokens=64, sampling=sampling)
    print(tokenizer.decode(answer))

    encoder = bert.load_sentence_encoder(minilm())
    embeddings = encoder.encode(["a sentence", "another one"])
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
