//! A fixed table of what is in flight, by index.

/// A table of at most `capacity` entries. An index is reused only after its entry was removed.
#[derive(Debug)]
pub(super) struct Table<T> {
    places: Vec<Option<T>>,
    free: Vec<u16>,
}

impl<T> Table<T> {
    /// An empty table; allocates once.
    pub(super) fn new(capacity: u16) -> Self {
        Self {
            places: (0..capacity).map(|_| None).collect(),
            free: (0..capacity).rev().collect(),
        }
    }

    /// Entries it can hold.
    pub(super) fn capacity(&self) -> usize {
        self.places.len()
    }

    /// Entries it holds.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Puts an entry at a free index and returns the index.
    ///
    /// # Errors
    /// Returns the entry if every index is in use.
    pub(super) fn insert(&mut self, entry: T) -> Result<u16, T> {
        let Some(place) = self.free.pop() else {
            return Err(entry);
        };
        self.places[usize::from(place)] = Some(entry);
        Ok(place)
    }

    /// The entry at an index, if there is one.
    pub(super) fn get_mut(&mut self, place: u16) -> Option<&mut T> {
        self.places.get_mut(usize::from(place))?.as_mut()
    }

    /// Indices in use and their entries.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u16, &T)> {
        let places = (0..).zip(&self.places);
        places.filter_map(|(place, entry)| entry.as_ref().map(|entry| (place, entry)))
    }

    /// Takes the entry out and frees its index.
    pub(super) fn remove(&mut self, place: u16) -> Option<T> {
        let entry = self.places.get_mut(usize::from(place))?.take()?;
        self.free.push(place);
        Some(entry)
    }

    /// Takes every entry out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.free.clear();
        self.free.extend((0..self.places.len() as u16).rev());
        self.places.iter_mut().filter_map(Option::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_place_is_never_given_out_again() {
        let mut table = Table::new(3);
        let places: Vec<u16> = (0..3).map(|i| table.insert(i).expect("free")).collect();
        assert_eq!(table.insert(9), Err(9));
        assert_eq!(table.remove(places[1]), Some(1));
        assert_eq!(table.remove(places[1]), None);
        assert_eq!(table.insert(7), Ok(places[1]));
        assert_eq!(table.get_mut(places[1]), Some(&mut 7));
        assert_eq!((table.remove(99), table.get_mut(99)), (None, None));
        assert_eq!(table.len(), 3);
        assert_eq!(table.drain().sum::<i32>(), 9);
        assert_eq!((table.len(), table.capacity()), (0, 3));
    }
}
