// Pictures from the camera: one, or a burst.

import { failed } from "./acts.js";
import { $, make, sleep } from "./dom.js";
import { take } from "./queue.js";

const BURST = 8, PAUSE = 250; // pictures, milliseconds between them

async function open() {
  if (!navigator.mediaDevices) return failed({ message: "The browser gives the camera to secure pages only: open this page by https or as localhost." });
  try {
    $("video").srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    $("camera-dialog").showModal();
  } catch {
    failed({ message: "The camera cannot be used: there is none, or the browser was told not to." });
  }
}

function frame(number) {
  const video = $("video");
  const canvas = make("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  return new Promise((done, fail) => canvas.toBlob((blob) => {
    if (blob) done(new File([blob], `camera ${number}.jpg`, { type: blob.type }));
    else fail(new Error("The camera shows nothing yet. Try again in a moment."));
  }, "image/jpeg", 0.92));
}

async function shoot(pictures) {
  const taken = [];
  $("snap").disabled = $("burst").disabled = true;
  try {
    for (let number = 1; number <= pictures && $("camera-dialog").open; number++) {
      if (number > 1) await sleep(PAUSE);
      taken.push(await frame(number));
    }
  } catch (error) {
    failed(error);
  }
  $("snap").disabled = $("burst").disabled = false;
  $("camera-dialog").close();
  if (taken.length) take(taken);
}

export function wire() {
  $("camera").onclick = open;
  $("snap").onclick = () => shoot(1);
  $("burst").onclick = () => shoot(BURST);
  $("camera-close").onclick = () => $("camera-dialog").close();
  $("camera-dialog").onclose = () => {
    $("video").srcObject?.getTracks().forEach((one) => one.stop());
    $("video").srcObject = null;
  };
}
