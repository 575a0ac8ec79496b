"use strict";
// Asks for what has changed, every two seconds, and puts it where it belongs. All texts were escaped by the server.
const EVERY = 2000;
const digests = new Map();
const connection = document.getElementById("connection");
let answered = new Date();

function put(id, part) {
  const place = document.getElementById(id);
  if (!place) return;
  const open = [...place.querySelectorAll("details[open]")].map(one => one.id);
  const scrolled = [...place.querySelectorAll(".table")].map(one => one.scrollTop);
  place.innerHTML = part.html;
  for (const one of open) document.getElementById(one)?.setAttribute("open", "");
  place.querySelectorAll(".table").forEach((one, number) => { one.scrollTop = scrolled[number] ?? 0; });
  digests.set(id, part.digest);
}

async function look() {
  try {
    const reply = await fetch("now.json?have=" + [...digests.values()].join(","), {cache: "no-store"});
    if (!reply.ok) throw new Error(reply.statusText);
    const now = await reply.json();
    for (const [id, part] of Object.entries(now.parts)) put(id, part);
    document.title = now.title;
    answered = new Date();
    connection.className = "";
    connection.textContent = "Updated " + answered.toLocaleTimeString() + ", every " + EVERY / 1000 + " s.";
  } catch {
    connection.className = "lost";
    connection.textContent = "No answer since " + answered.toLocaleTimeString() + ": is `fedssl watch` still running?";
  }
  setTimeout(look, EVERY);
}

look();
