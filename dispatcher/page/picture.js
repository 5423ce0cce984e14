// The picture that is asked about: dropped, pasted, chosen, taken with the camera, or a sample.

import { limits, size } from "./api.js";

const at = (id) => document.getElementById(id);
const ROOM = 4096; // for the rest of the body

export class PictureField {
  // `changed` is called with every new picture; `refuse` with the reason why one is not taken.
  constructor(changed, refuse) {
    this.changed = changed;
    this.refuse = refuse;
    this.value = null;
    const drop = at("drop");
    at("file").addEventListener("change", (event) => this.chosen(event.target));
    at("capture").addEventListener("change", (event) => this.chosen(event.target));
    addEventListener("paste", (event) => this.files(event.clipboardData?.files, event));
    let inside = 0; // dragenter and dragleave come for every element below
    addEventListener("dragenter", () => drop.classList.toggle("over", ++inside > 0));
    addEventListener("dragleave", () => drop.classList.toggle("over", --inside > 0));
    addEventListener("drop", (event) => {
      inside = 0;
      drop.classList.remove("over");
      if (at("try").hidden) return;
      if (at("picture-field").hidden) this.refuse("None of the chosen models takes a picture.", "Choose one that does, then drop it again.");
      else if (event.dataTransfer?.files.length) this.files(event.dataTransfer.files, event);
      else this.refuse("What was dropped is no file.", "Save the picture first, then drop the file.");
    });
    at("preview").addEventListener("error", () => {
      at("preview").hidden = true;
      this.say(`This browser cannot show “${this.value.name}”. The server will say whether it is a picture.`);
    });
    this.camera();
  }

  chosen(input) {
    this.files(input.files);
    input.value = ""; // so that the same file may be chosen again
  }

  files(list, event) {
    if (!list?.length || at("picture-field").hidden || at("try").hidden) return;
    event?.preventDefault();
    const [file] = list;
    this.set(file, file.name || "picture.png", list.length > 1 ? "The first of several files: a picture at a time." : "");
  }

  // Takes a file, unless the server would refuse a body of its size; `quiet` asks nothing.
  set(blob, name, note = "", quiet = false) {
    const most = Math.floor((limits.maxBody - ROOM) * 3 / 4); // base64 makes four bytes of three
    if (blob.size > most) {
      this.refuse(
        `“${name}” has ${size(blob.size)}; the server takes pictures of at most ${size(most)} here.`,
        `Nothing was sent. Send a smaller picture, or raise MODEL_SERVER_MAX_BODY_MB (now ${limits.maxBody / 2 ** 20}).`,
      );
      return;
    }
    if (!blob.size) {
      this.refuse(`“${name}” is empty.`, "Choose a file with a picture in it.");
      return;
    }
    if (this.value) URL.revokeObjectURL(this.value.preview);
    const preview = URL.createObjectURL(blob);
    this.value = { blob, name, type: blob.type || "application/octet-stream", preview };
    at("preview").hidden = false;
    at("preview").src = preview;
    this.say(note || `${name}, ${size(blob.size)}. Drop, paste or choose another one:`);
    this.changed(quiet);
  }

  say(text) {
    at("picture-note").textContent = text;
  }

  // The camera of the machine, in a dialog; where a browser gives none (a page without https),
  // a phone's own camera by way of a file.
  camera() {
    const dialog = at("camera-dialog"), video = at("video"), note = at("camera-note");
    let stream;
    const stop = () => {
      stream?.getTracks().forEach((track) => track.stop());
      stream = video.srcObject = null;
    };
    at("camera").addEventListener("click", async () => {
      if (!navigator.mediaDevices?.getUserMedia) {
        at("capture").click();
        return;
      }
      note.hidden = true;
      at("shoot").disabled = true;
      dialog.showModal();
      try {
        stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
        if (!dialog.open) return stop();
        video.srcObject = stream;
        await video.play();
        at("shoot").disabled = false;
      } catch (error) {
        note.textContent = error.name === "NotAllowedError"
          ? "The browser may not use the camera. Allow it in the settings of this site."
          : "There is no camera, or another program is using it.";
        note.hidden = false;
      }
      return undefined;
    });
    at("shoot").addEventListener("click", () => {
      const canvas = document.createElement("canvas");
      canvas.width = video.videoWidth;
      canvas.height = video.videoHeight;
      canvas.getContext("2d").drawImage(video, 0, 0);
      canvas.toBlob((blob) => blob && this.set(blob, "camera.jpg"), "image/jpeg", 0.92);
      dialog.close();
    });
    at("camera-close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", stop);
  }
}

// A file in base64.
export function base64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error("the file can no longer be read; choose it again"));
    reader.readAsDataURL(blob);
  });
}
