// Records a sound. What browsers record is no format that the server reads: it becomes a WAV file.

export const canRecord = Boolean(navigator.mediaDevices && window.MediaRecorder); // by https, or on localhost

// Begins, and calls `tell` with the seconds since; returns what ends it and gives the file.
export async function startRecording(tell) {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream), pieces = [], began = performance.now();
  recorder.addEventListener("dataavailable", ({ data }) => pieces.push(data));
  const ended = new Promise((resolve) => recorder.addEventListener("stop", resolve));
  recorder.start();
  const clock = setInterval(() => tell(Math.floor((performance.now() - began) / 1000)), 250);
  return async () => {
    clearInterval(clock);
    recorder.stop();
    await ended;
    stream.getTracks().forEach((track) => track.stop());
    const context = new AudioContext();
    const sound = await context.decodeAudioData(await new Blob(pieces).arrayBuffer());
    await context.close();
    return new File([writeWav(sound.getChannelData(0), sound.sampleRate)], "recording.wav");
  };
}

// One channel of 16 bits.
function writeWav(samples, rate) {
  const size = 2 * samples.length, view = new DataView(new ArrayBuffer(44 + size));
  const text = (at, letters) => [...letters].forEach((one, place) => view.setUint8(at + place, one.charCodeAt(0)));
  ["RIFF", "WAVE", "fmt ", "data"].forEach((name, place) => text([0, 8, 12, 36][place], name));
  [[4, 36 + size], [16, 16], [24, rate], [28, 2 * rate], [40, size]].forEach(([at, number]) => view.setUint32(at, number, true));
  [[20, 1], [22, 1], [32, 2], [34, 16]].forEach(([at, number]) => view.setUint16(at, number, true));
  samples.forEach((one, place) => view.setInt16(44 + 2 * place, 32767 * Math.max(-1, Math.min(1, one)), true));
  return view.buffer;
}
