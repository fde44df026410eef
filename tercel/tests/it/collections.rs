//! Lists of references by position, in the object and in chunks.

use tercel::{Error, List, Object, Ref};

#[derive(Object)]
struct Shelf {
    books: List<Ref<Book>>,
}

#[derive(Object)]
struct Book {
    number: u64,
}

#[test]
fn an_element_of_a_list_is_had_by_its_position() {
    let dir = tempfile::tempdir().unwrap();
    let space = tercel::embedded(dir.path()).unwrap();
    // Nothing, in the object, one chunk, and a node above chunks.
    for len in [0, 1, 200, 300, 992, 993, 2_500] {
        let shelf = space
            .run(|tx| {
                let mut books: Vec<Ref<Book>> =
                    (0..len).map(|number| tx.create(&Book { number })).collect::<Result<_, Error>>()?;
                books.push(Ref::NULL);
                tx.create(&Shelf { books: List(books) })
            })
            .unwrap();
        space
            .run(|tx| {
                let shelf = tx.get(shelf)?;
                let books = shelf.books();
                let all = books.references()?;
                assert_eq!(all.len() as u64, len + 1);
                for (i, book) in all.iter().enumerate().take(len as usize) {
                    assert_eq!(books.get_ref(i)?, Some(*book));
                    assert_eq!(books.get(i)?.number(), i as u64);
                }
                let last = len as usize;
                assert_eq!(books.get_ref(last)?, Some(Ref::NULL));
                assert!(books.find(last)?.is_none() && matches!(books.get(last), Err(Error::NotFound(_))));
                assert_eq!(books.get_ref(last + 1)?, None);
                assert!(books.find(last + 1)?.is_none() && books.get(last + 1).is_err());
                if len > 0 {
                    assert!(matches!(books.cast::<Shelf>().get(0), Err(Error::Schema(_))));
                }
                Ok(())
            })
            .unwrap();
    }
    space.close().unwrap();
}
