// The small live picture of the first page: tokens that look away from themselves, A = −I, and one number.
live.picture("teaser", ({ one, form, show, set, state }) => {
	plane.hold(one("svg"), state, set);
	one(".live-hands").hidden = false;
	return {
		settle: plane.settle,
		measure: (scene) => plane.measure(scene, [-1, 0, 0, -1]),
		draw(scene, found) {
			plane.draw(one("svg"), scene, found);
			show({ norm: live.say(found.norm) });
			form.style.setProperty("--norm", found.norm);
		},
	};
});
