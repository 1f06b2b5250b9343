use super::*;

fn settings(nodes: u32, limits: &[&str]) -> Settings {
    let limits = limits.iter().map(|limit| limit.parse().unwrap()).collect();
    let link = Some("200mbit".parse().unwrap());
    let slow = vec!["node-01:disk=50MiB".parse().unwrap(), "*:coding=20MiB".parse().unwrap()];
    Settings { nodes, racks: 1, link, rack_link: None, outside_link: None, limits, insecure: false, slow, matrix: None }
}

#[test]
fn limits_are_of_senders_receivers_and_pairs() {
    let it = settings(4, &["node-01:*=40mbit", "*:node-02=30mbit", "node-03:node-04=10mbit"]);
    let between = |from, to| it.carried(&it.shaping().unwrap(), from, to).unwrap().to_string();
    assert_eq!([between(0, 2), between(0, 1), between(2, 3), between(3, 2)], ["40mbit", "30mbit", "10mbit", "200mbit"]);
    assert_eq!(
        it.range().unwrap().map(|(slowest, fastest)| (slowest.to_string(), fastest.to_string())),
        Some(("10mbit".into(), "200mbit".into()))
    );
    for wrong in ["*:*=1mbit", "node-05:*=1mbit", "node-00:*=1mbit"] {
        assert!(settings(4, &[wrong]).check().is_err(), "{wrong}");
    }
    let outside_link = Some("50mbit".parse().unwrap());
    for it in [Settings { outside_link, ..it.clone() }, it] {
        assert_eq!(it.shaping().unwrap().outside, it.outside_link);
        let text = toml::to_string(&it).unwrap();
        assert_eq!(toml::from_str::<Settings>(&text).unwrap(), it);
    }
}

#[test]
fn one_directory_is_one_testbed_however_it_is_written() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("bed");
    fs::create_dir(&dir).unwrap();
    let ids = [dir.clone(), dir.join(""), dir.join("../bed"), dir.join(".")].map(|dir| Namespaces::of(&real_path(&dir).unwrap()));
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    fs::write(dir.join("weft.toml"), "").unwrap();
    assert!(!is_known(&dir).unwrap(), "a cluster is not a testbed");
}

#[test]
fn a_matrix_of_places_makes_racks_and_one_of_nodes_does_not() {
    let of_places = Matrix::parse("x,A,B\nA,500,60\nB,50,300").unwrap();
    let it = Settings { link: None, ..settings(4, &[]) }.with_matrix(of_places);
    assert_eq!(it.racks, 2);
    let between = |from, to| it.carried(&it.shaping().unwrap(), from, to).unwrap().to_string();
    assert_eq!([between(0, 2), between(0, 1), between(1, 0), between(1, 3)], ["500mbit", "60mbit", "50mbit", "300mbit"]);
    let of_nodes = Matrix::parse("x,node-01,node-02\nnode-01,9,60\nnode-02,50,9").unwrap();
    let it = Settings { link: None, ..settings(2, &[]) }.with_matrix(of_nodes);
    assert_eq!((it.racks, it.carried(&it.shaping().unwrap(), 1, 0).unwrap().to_string()), (1, "50mbit".to_owned()));
}
