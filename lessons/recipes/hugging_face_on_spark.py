# %% [markdown]
# # Fine-tune a Hugging Face model on Spark
#
# A loop that uses `accelerate` runs under `TorchDistributor`, too: `Accelerator` reads torchrun's variables, wraps the model and gives each rank its own batches. On machines without a GPU it needs an argument: without `cpu=True`, `Accelerator()` doesn't join the other ranks. Each of them then trains a model of its own on all rows, and Accelerate doesn't say so.
#
# You need lesson 07.

# %%
from labkit.local import spark

spark.prepare()

# %%
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[2]").getOrCreate()

# %% [markdown]
# To stay offline, the tokenizer is built from a list of words, and the model from a configuration, with random weights. At work, both come from `from_pretrained("…")`, and the rest stays the same. The sentences are reviews, good (1) or bad (0).

# %%
import itertools

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

things, praise, blame = (
    ["film", "book", "song", "meal"],
    ["great", "lovely", "fresh"],
    ["dull", "awful", "stale"],
)
texts = [f"the {a} is {b} and the {c} too" for a, b, c in itertools.product(things, praise + blame, things)]
labels = [int(any(word in praise for word in text.split())) for text in texts]

words = sorted({word for text in texts for word in text.split()})
vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *words])}
backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")
tokenizer("the film is great")["input_ids"]


# %%
def fine_tune(epochs):
    import torch
    from accelerate import Accelerator
    from transformers import BertConfig, BertForSequenceClassification

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    rows = torch.utils.data.TensorDataset(
        encoded["input_ids"], encoded["attention_mask"], torch.tensor(labels)
    )
    loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(epochs):
        for ids, mask, y in loader:
            loss = model(input_ids=ids, attention_mask=mask, labels=y).loss
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}, {len(loader)} steps")
    weights = accelerator.unwrap_model(model).state_dict()
    sums = accelerator.gather(torch.stack([tensor.sum() for tensor in weights.values()]).sum().reshape(1))
    del model  # before its process group goes
    accelerator.end_training()
    return {"processes": accelerator.num_processes, "steps": len(loader)}, sums.tolist(), weights


# %% [markdown]
# The function imports what it needs at its top, and the tokenizer, the texts and the labels are pickled with it. `batch_size=8` is the batch of one rank, as with DDP.

# %%
from labkit.spark import SparkPanel

distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
with SparkPanel("hugging-face", epochs=3).watch(distributor):
    counts, sums, weights = distributor.run(fine_tune, 3)
counts, sums

# %% [markdown]
# Two processes, half of the 12 batches each, and the same weights in both: the ranks trained together. Now the model answers here, in the notebook:

# %%
import torch
from transformers import BertConfig, BertForSequenceClassification

config = BertConfig(
    vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
)  # fmt: skip
model = BertForSequenceClassification(config).eval()
model.load_state_dict(weights)
with torch.no_grad():
    answers = model(**tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)).logits
accuracy = (answers.argmax(dim=1) == torch.tensor(labels)).float().mean().item()
print(f"accuracy {accuracy:.2f}")

# %% tags=["claim"]
assert counts == {"processes": 2, "steps": 6} and len(texts) == 96
assert sums[0] == sums[1]
assert accuracy > 0.9

# %%
session.stop()
