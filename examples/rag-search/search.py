"""Find the documents that answer a question: by their vectors, then by pairs of texts.

usage: python search.py http://127.0.0.1:8080/v1 "a question"
"""

import sys

from openai import OpenAI

DOCUMENTS = [
    "The museum of natural history opens at nine and closes at five.",
    "Berlin is the capital of Germany, and its largest city.",
    "In Berlin live 3.6 million inhabitants.",
    "Hamburg has the largest port of Germany.",
    "How many people live in the mountains is not known.",
    "A cat sleeps up to sixteen hours a day.",
    "The town hall of Berlin has a red tower.",
    "Whales are mammals that live in the sea.",
]
ENDPOINT, QUESTION = sys.argv[1:]

client = OpenAI(base_url=ENDPOINT, api_key="none is needed")
answer = client.embeddings.create(model="minilm", input=[QUESTION, *DOCUMENTS])
question, *vectors = (one.embedding for one in answer.data)
print(f"{answer.usage.total_tokens} tokens, vectors of {len(question)} numbers")

# Vectors have length 1: their product is the cosine. In production a vector database does this.
cosines = [sum(a * b for a, b in zip(question, vector, strict=True)) for vector in vectors]
nearest = sorted(range(len(DOCUMENTS)), key=lambda place: -cosines[place])[:4]
for place in nearest:
    print(f"{cosines[place]:.2f}  {DOCUMENTS[place]}")

# OpenAI has no route for this, so its client has no method, but `post` takes any body.
body = {
    "model": "reranker",
    "query": QUESTION,
    "documents": [DOCUMENTS[place] for place in nearest],
    "top_n": 2,
    "return_documents": True,
}
print("reranked:")
for one in client.post("/rerank", body=body, cast_to=object)["results"]:
    print(f"{one['relevance_score']:.2f}  {one['document']['text']}")
