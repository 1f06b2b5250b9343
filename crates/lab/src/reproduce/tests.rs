use super::{
    super::{
        PAPERS, cpu_figures, ecpipe, mist,
        page::{NAME, page, section, write_page},
    },
    *,
};
use crate::{
    bench::Machine,
    reproduce::{Asked, Links, Recovery, Shows, Updating, Writing, run},
};
use weft_schemes::Kind;
use weft_types::ByteSize;

fn point(x: Option<&str>, scheme: &str, median_s: f64, bound_s: Option<f64>) -> Point {
    let outcome = Outcome {
        scheme: scheme.to_owned(),
        median_s,
        min_s: median_s * 0.75,
        max_s: median_s * 1.25,
        runs: 3,
        bytes_moved: 7 << 20,
        bound_s,
        cpu_idle: 0.5,
        ratio: None,
        times_s: Vec::new(),
    };
    Point { x: x.map(ToOwned::to_owned), rate_mib_s: None, outcome }
}

/// Figure 6a, with simple numbers.
fn report() -> (&'static Figure, Report) {
    let figure = ecpipe::PAPER.figure("6a").unwrap();
    let mut results = vec![
        point(Some("32KiB"), "pipeline", 2.5, Some(2.0)),
        point(Some("32KiB"), "cyclic", 2.0, None),
        point(Some("64KiB"), "pipeline", 3.0, Some(2.25)),
        point(Some("64KiB"), "cyclic", 2.75, None),
        point(None, "direct", 2.0, Some(2.0)),
        point(None, "conventional", 25.0, Some(20.0)),
        point(None, "ppr", 10.0, Some(8.0)),
    ];
    figure.arrange(&mut results);
    let settings = Asked {
        paper: "ecpipe".to_owned(),
        figure: "6a".to_owned(),
        block_size: ByteSize(1 << 20),
        runs: 3,
        quick: false,
        seed: 1,
        link: None,
        disks: None,
        testbed: run::settings(figure, "200mbit".parse().unwrap(), false).unwrap(),
    };
    (figure, Report { machine: Machine::this(), settings, results, warnings: vec!["mind".to_owned()] })
}

#[test]
fn points_stand_in_the_order_of_the_legend_beside_their_base() {
    let (_, report) = report();
    let order: Vec<String> = labelled(&report.results).into_iter().map(|it| it.scheme).collect();
    let expected = ["direct", "conventional", "ppr", "32KiB  pipeline", "32KiB  cyclic", "64KiB  pipeline", "64KiB  cyclic"];
    assert_eq!(order, expected);
    assert_eq!(report.results[3].outcome.ratio, Some(1.25));
}

#[test]
fn claims_are_what_the_numbers_make_of_them_here_and_by_the_links() {
    let (figure, report) = report();
    let beside = beside(figure, &report);
    let row = |at: usize| (beside[at].paper, beside[at].ours.as_str(), beside[at].links.as_str());
    assert_eq!(row(0), ("90.9 %", "90.0 %", "90.0 %"));
    assert_eq!(row(1), ("80.4 %", "75.0 %", "75.0 %"));
    assert_eq!(row(2), ("10.7 %", "-25.0 %", "-"));
    assert_eq!(row(3), ("7.0 %", "25.0 %", "0.0 %"));
    let claim = |at, how| Claim { text: "", paper: "", of: "pipeline", than: "cyclic", at, how };
    let ours = |claim: &Claim| value(figure, claim, &report, |it| Some(it.median_s)).unwrap();
    assert_eq!(ours(&claim(At::Most, How::More)), "25.0 %");
    assert_eq!(ours(&claim(At::First, How::Ratio)), "1.250");
    assert_eq!(ours(&claim(At::Last, How::Ratio)), "1.500");
    assert_eq!(ours(&claim(At::All, How::Ratio)), "1.250 to 1.500");
    assert_eq!(ours(&claim(At::All, How::Saves)), "-0.50 to -0.25 s");
    assert_eq!(ours(&claim(At::Range(&["32KiB", "64KiB"]), How::More)), "9.1-25.0 %");
    assert_eq!(ours(&claim(At::X("32KiB"), How::Blocks)), "7.0");
    let text = text(&ecpipe::PAPER, figure, &report);
    assert!(text.contains("90.9 %") && text.contains("warning: mind") && text.contains("links of 200mbit"), "{text}");
}

#[test]
fn files_say_what_was_measured_and_are_read_again() {
    let (figure, report) = report();
    let dir = tempfile::tempdir().unwrap();
    write(&ecpipe::PAPER, figure, &report, dir.path()).unwrap();
    let read = read(&ecpipe::PAPER, figure, dir.path()).unwrap().unwrap();
    assert_eq!((&read.results, &read.settings, &read.machine), (&report.results, &report.settings, &report.machine));
    let csv = fs::read_to_string(dir.path().join("ecpipe-6a.csv")).unwrap();
    let rows: Vec<Point> = csv.lines().skip(1).map(parsed).collect();
    assert_eq!(rows, report.results);
    write_page(dir.path()).unwrap();
    let page = fs::read_to_string(dir.path().join(NAME)).unwrap();
    assert!(page.contains("Figure 6a") && page.contains("| 90.9 % | 90.0 % |") && !page.contains("Figure 6b"), "{page}");
}

/// A line of a CSV file, as a spreadsheet reads it.
fn parsed(line: &str) -> Point {
    let (mut cells, mut is_quoted) = (vec![String::new()], false);
    for letter in line.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            letter => cells.last_mut().unwrap().push(letter),
        }
    }
    let number = |at: usize| cells[at].parse::<f64>().ok();
    let outcome = Outcome {
        scheme: cells[1].clone(),
        median_s: number(2).unwrap(),
        min_s: number(3).unwrap(),
        max_s: number(4).unwrap(),
        runs: cells[5].parse().unwrap(),
        bytes_moved: cells[6].parse().unwrap(),
        bound_s: number(7),
        cpu_idle: number(8).unwrap(),
        ratio: number(9),
        times_s: Vec::new(),
    };
    Point { x: Some(cells[0].clone()).filter(|x| !x.is_empty()), rate_mib_s: number(10), outcome }
}

#[test]
fn the_docs_have_all_figures_measured_as_often_as_usual() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/figures");
    for paper in PAPERS {
        for figure in paper.figures {
            let report = read(paper, figure, &dir).unwrap_or_else(|error| panic!("{error}"));
            let Asked { block_size, runs, quick, .. } = report.unwrap_or_else(|| panic!("no {}", figure.name)).settings;
            let usual = figure.usual(false);
            assert!(!quick && block_size.0 >= usual.0 && runs >= usual.1, "{} {}: {runs} runs", paper.name, figure.name);
        }
    }
    // Of the paper on updates, those that were measured.
    for figure in cpu_figures::PAPER.figures {
        if let Some(report) = read(&cpu_figures::PAPER, figure, &dir).unwrap() {
            let Asked { runs, quick, .. } = report.settings;
            assert!(!quick && runs >= figure.usual(false).1, "{}: {runs} runs", figure.name);
        }
    }
}

/// `make bless` sets it: the files are written, and not compared.
const BLESS: &str = "WEFT_BLESS";

/// A change of a figure's text, of a claim or of the charts appears in the page, without a measurement.
#[test]
fn the_docs_are_drawn_from_the_results_beside_them() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let figures = docs.join("figures");
    let mut fresh = vec![(docs.join(NAME), page(&figures, "figures/").unwrap().into_bytes())];
    for paper in PAPERS.into_iter().chain([&cpu_figures::PAPER]) {
        for figure in paper.figures {
            if let Some(report) = read(paper, figure, &figures).unwrap() {
                let files = files(paper, figure, &report).unwrap();
                fresh.extend(files.map(|(name, content)| (figures.join(name), content)));
            }
        }
    }
    for (path, content) in fresh {
        if std::env::var_os(BLESS).is_some() {
            fs::write(&path, &content).unwrap();
        }
        let is_same = fs::read(&path).is_ok_and(|kept| kept == content);
        assert!(is_same, "{} is not what the results in docs/figures give: run `make bless`", path.display());
    }
}

#[test]
fn the_command_that_is_shown_measures_the_same_again() {
    let (figure, mut report) = report();
    let shown = |report: &Report| {
        let command = command(&ecpipe::PAPER, figure, report);
        let (text, section) = (text(&ecpipe::PAPER, figure, report), section(&ecpipe::PAPER, figure, report, "").unwrap());
        assert!(text.contains(&format!("\n{command}\n")) && section.contains(&format!("\n{command}\n")), "{text}\n{section}");
        command
    };
    let usual = "sudo weft reproduce ecpipe --figure 6a";
    assert_eq!(shown(&report), format!("{usual} --runs 3 --block-size 1MiB"));
    (report.settings.block_size.0, report.settings.runs) = figure.usual(false);
    assert_eq!(shown(&report), usual);
    (report.settings.seed, report.settings.link) = (7, Some("50mbit".parse().unwrap()));
    assert_eq!(shown(&report), format!("{usual} --link 50mbit --seed 7"));
    (report.settings.block_size.0, report.settings.runs) = figure.usual(true);
    report.settings = Asked { quick: true, seed: 1, link: None, ..report.settings };
    assert_eq!(shown(&report), format!("{usual} --quick"));

    // Older results lack these fields: the rates come from the testbed settings.
    let mut old = serde_json::to_value(&report.settings).unwrap();
    old["testbed"]["link"] = "100mbit".into();
    assert!(old.as_object_mut().unwrap().remove("seed").is_some() && old.get("link").is_none());
    report.settings = serde_json::from_value(old).unwrap();
    assert_eq!(shown(&report), format!("{usual} --quick --link 100mbit"));
}

#[test]
fn places_with_commas_stay_one_cell() {
    let mut of_code = point(Some("rs(12,4)"), "pipeline, best path", 1.5, None);
    of_code.outcome.ratio = Some(0.5);
    of_code.rate_mib_s = Some(12.5);
    let csv = csv(std::slice::from_ref(&of_code));
    assert_eq!(parsed(csv.lines().nth(1).unwrap()), of_code);
}

#[test]
fn rates_are_shown_as_the_axis_has_them() {
    let figure = ecpipe::PAPER.figure("6e").unwrap();
    let of =
        |x, scheme, median_s: f64| Point { rate_mib_s: Some(60.0 / median_s), ..point(Some(x), scheme, median_s, Some(1.0)) };
    let [conventional, _, ppr, _, by_index, in_turn] = figure.schemes else { panic!("{:?}", figure.schemes) };
    let mut results = Vec::new();
    for (x, factor) in [("1", 4.0), ("16", 1.0)] {
        let all = [(in_turn, 2.0), (by_index, 2.5), (ppr, 4.0), (conventional, 5.0)];
        results.extend(all.map(|(scheme, seconds)| of(x, scheme, seconds * factor)));
    }
    figure.arrange(&mut results);
    let (_, report) = report();
    let report = Report { results, ..report };
    let ours: Vec<String> = beside(figure, &report).into_iter().map(|it| it.ours).collect();
    assert_eq!(ours, ["2.00 x", "25.0 %", "1.25 x", "1.25 x", NOT_MEASURED, NOT_MEASURED]);
    let text = text(&ecpipe::PAPER, figure, &report);
    let row = text.lines().skip_while(|line| *line != "rebuilt, MiB per second").find(|line| line.starts_with("16 ")).unwrap();
    let rates: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(rates, ["16", "12.0", "-", "15.0", "-", "24.0", "30.0"]);
    // The longest run has the lowest rate, and the link bound is the highest.
    let svg = chart::Chart::of(&ecpipe::PAPER, figure, &report).svg().unwrap();
    assert!(svg.contains("\nrebuilt, MiB per second\n") && svg.contains("\n60\n"), "{svg}");
}

#[test]
fn charts_hold_every_series_and_are_the_same_each_time() {
    let (figure, report) = report();
    let chart = || chart::Chart::of(&ecpipe::PAPER, figure, &report);
    let svg = chart().svg().unwrap();
    assert_eq!(svg, chart().svg().unwrap());
    for name in figure.schemes.iter().chain(&["link bound", "32KiB", "slice size", "repair time, seconds"]) {
        assert!(svg.contains(&format!("\n{name}\n")), "{name} is not in the chart");
    }
    // Elements are closed in the order in which they were opened.
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1).map(|tag| tag.split_once('>').unwrap().0) {
        let name = tag.trim_start_matches('/').split([' ', '\n', '/']).next().unwrap();
        match () {
            () if tag.starts_with('?') || tag.ends_with('/') => {}
            () if tag.starts_with('/') => assert_eq!(open.pop(), Some(name)),
            () => open.push(name),
        }
    }
    assert!(open.is_empty() && svg.starts_with("<svg"), "{open:?} is not closed");

    let png = chart().png().unwrap();
    assert_eq!(png, chart().png().unwrap());
    let mut reader = png::Decoder::new(std::io::Cursor::new(&png)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.height, info.color_type), (1600, 1000, png::ColorType::Rgb));
    // The background is white, and something is drawn on it.
    let white = pixels.iter().filter(|byte| **byte == 255).count();
    assert!(white > pixels.len() * 7 / 10 && white < pixels.len() * 99 / 100, "{white} of {}", pixels.len());
}

#[test]
fn every_figure_can_be_run_and_every_claim_be_told() {
    for figure in ecpipe::PAPER.figures.iter().chain(mist::PAPER.figures).chain(cpu_figures::PAPER.figures) {
        let link = figure.link.parse().unwrap();
        for block_len in [figure.block_len, 64 << 10] {
            let setups = (figure.setups)(crate::reproduce::Scale { link, block_len, quick: false }).unwrap();
            let cases = || setups.iter().flat_map(|setup| &setup.cases);
            let mut points: Vec<Point> = cases().map(|(x, case)| point(x.as_deref(), &case.label, 2.0, Some(1.0))).collect();
            for (_, case) in cases() {
                assert!(figure.schemes.contains(&case.label.as_str()), "{} of figure {}", case.label, figure.name);
            }
            for setup in &setups {
                let code = weft_codes::parse(&setup.code).unwrap();
                let names: Vec<&str> = setup.cases.iter().map(|(_, case)| case.scheme.as_str()).collect();
                if let Links::Written(Writing { size, writers, replicas, shows }) = setup.links {
                    let places: Vec<String> = match shows {
                        Shows::Median => Vec::new(),
                        Shows::Parts => ["writer", "level 1", "level 2", "level 3", "link"].map(str::to_owned).to_vec(),
                        Shows::Spread => run::SHARES.iter().map(|percent| format!("{percent} %")).collect(),
                    };
                    let labels = || setup.cases.iter().map(|(_, case)| case.label.as_str());
                    let place =
                        |place: &String| labels().map(|label| point(Some(place), label, 1.0, Some(1.0))).collect::<Vec<_>>();
                    points.extend(places.iter().flat_map(place));
                    names.iter().for_each(|scheme| weft_schemes::check_name(Kind::Write, scheme).unwrap());
                    let copies = code.k() * (replicas as usize - 1);
                    assert!(code.n() + copies <= figure.nodes as usize && writers <= figure.nodes);
                    let settings = run::settings(figure, link, false).unwrap();
                    assert!(settings.check().is_ok(), "{:?}", settings.slow);
                    assert!(setup.block_len * code.k() as u64 >= size && size > 0, "{}: {size}", setup.code);
                } else if let Links::Updated(Updating { blocks, stripes, places }) = &setup.links {
                    names.iter().for_each(|scheme| weft_schemes::check_name(Kind::Update, scheme).unwrap());
                    let places = places.as_ref().map_or(figure.racks, |matrix| matrix.names.len() as u32);
                    assert!(code.n() <= figure.nodes as usize && figure.racks == places, "figure {}", figure.name);
                    assert!(*blocks <= code.k() && *stripes <= figure.nodes as usize);
                } else {
                    names.iter().for_each(|scheme| weft_schemes::check_name(Kind::Repair, scheme).unwrap());
                    assert!(code.n() < figure.nodes as usize, "{} leaves no node for the requestor", setup.code);
                }
                assert!(setup.block_len.is_multiple_of(4096 * code.alpha() as u64), "{}", setup.block_len);
                if let Links::Node(Recovery { holders, requestors, lost }) = setup.links {
                    assert!(code.n() <= holders as usize && holders as usize + requestors <= figure.nodes as usize);
                    assert_eq!(lost % requestors, 0, "requestors get different amounts");
                }
            }
            figure.arrange(&mut points);
            let (_, report) = report();
            let report = Report { results: points, ..report };
            for claim in beside(figure, &report) {
                assert!(claim.ours != "-" && claim.links != "-", "figure {}: {}", figure.name, claim.text);
            }
        }
    }
}
