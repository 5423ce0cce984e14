// What a model takes, as far as its description and its examples show.

const BEGINNINGS = { "/9j/": "jpeg", iVBORw0KGgo: "png", R0lGOD: "gif", UklGR: "webp", Qk: "bmp" };
const MASK = /\[MASK\]|<mask>|<extra_id_0>/;

// The type of a picture in base64; undefined for any other text.
export function pictureType(value) {
  if (typeof value !== "string" || value.length < 60) return undefined;
  const text = value.replace(/^data:[\w/+.-]+;base64,/, "");
  const begin = Object.keys(BEGINNINGS).find((one) => text.startsWith(one));
  return begin && /^[\w+/=\s-]+$/.test(text.slice(0, 400)) ? `image/${BEGINNINGS[begin]}` : undefined;
}

export function examplesOf(entry) {
  return (entry.examples ?? [entry.example]).filter((one) => one && typeof one === "object" && !Array.isArray(one));
}

// { picture, text: the payload's fields for them; others: its other fields with their examples;
//   tensors: whether the model takes tensors instead of a payload }
export function takes(entry) {
  const [example = {}] = examplesOf(entry);
  const found = { picture: entry.media?.picture, text: entry.media?.text, others: {} };
  for (const [name, value] of Object.entries(example)) {
    if (name === found.picture || name === found.text) continue;
    if (!found.picture && pictureType(value)) found.picture = name;
    else if (!found.text && typeof value === "string") found.text = name;
    else found.others[name] = value;
  }
  const nothing = !found.picture && !found.text && !Object.keys(found.others).length;
  found.tensors = nothing && (!entry.client || /^Tensors? /.test(entry.client) || !entry.example);
  return found;
}

export const groupOf = (taken) =>
  taken.tensors ? "Tensors" : taken.picture && taken.text ? "A picture and a text"
    : taken.picture ? "A picture" : taken.text ? "A text" : "Other";

// The word that stands for the missing one, if an example of the model has one.
export function maskOf(entry, taken) {
  for (const one of examplesOf(entry)) {
    const found = MASK.exec(taken.text ? one[taken.text] : "");
    if (found) return found[0];
  }
  return undefined;
}

// A file made of base64, in the standard or the URL-safe alphabet.
export function blobOf(text, type) {
  const plain = text.replace(/^data:[^,]*,/, "").replace(/\s/g, "").replace(/-/g, "+").replace(/_/g, "/");
  return new Blob([Uint8Array.from(atob(plain), (one) => one.charCodeAt(0))], { type });
}
